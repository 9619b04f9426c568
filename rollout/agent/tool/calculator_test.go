package tool

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestCalculatorIsExactWhereItCanBe(t *testing.T) {
	for expression, want := range map[string]string{
		"0.1 + 0.2":                 "0.3",
		"1/3*3":                     "1",
		"1/8":                       "0.125",
		"2**100":                    "1267650600228229401496703205376",
		"2**-2":                     "0.25",
		"10**-20 + 1":               "1.00000000000000000001",
		"12345678901234567890 * 99": "1222222211222222221110",
		"1e3 + 1.5E-2 + .5 + 2.":    "1002.515",
		"sqrt(9/16)":                "0.75",
		"sqrt(10**40)":              "100000000000000000000",
		"sqrt(2)":                   "1.4142135623731",
		"2**0.5 - sqrt(2)":          "0",
		"sqrt(2)**2":                "2",
		"8**(1/3)":                  "2",
		"pi":                        "3.14159265358979",
		"e":                         "2.71828182845905",
		"1/3":                       "0.333333333333333",
		"2/3*10**20":                "6.66666666666667e+19",
	} {
		if got := calculate(expression); got != want {
			t.Errorf("%s = %s, want %s", expression, got, want)
		}
	}
}

// The values are Python's.
func TestCalculatorHasPythonsPrecedenceAndRounding(t *testing.T) {
	for expression, want := range map[string]string{
		"1 + 2 * 3":               "7",
		"(1 + 2) * 3":             "9",
		"10 - 4 - 3":              "3",
		"100 / 10 / 5":            "2",
		"2 ** 3 ** 2":             "512",
		"-2 ** 2":                 "-4",
		"2 ** -1":                 "0.5",
		"(-2) ** 3":               "-8",
		"--3 - +2":                "1",
		"2 * -3":                  "-6",
		"-7 // 2":                 "-4",
		"7 // -2":                 "-4",
		"-7 % 3":                  "2",
		"7 % -3":                  "-2",
		"7.5 % 2":                 "1.5",
		"0 ** 0":                  "1",
		"-3 % 5 ** 2":             "22",
		"round(2.5) + round(.5)":  "2",
		"round(3.5)":              "4",
		"round(-2.5)":             "-2",
		"round(1234, -2)":         "1200",
		"round(pi, 4)":            "3.1416",
		"max(1, 3, 2) - min(4,5)": "-1",
		"abs(-3) * abs(2)":        "6",
		"round(max(1/3,.3), 2)":   "0.33",
	} {
		if got := calculate(expression); got != want {
			t.Errorf("%s = %s, want %s", expression, got, want)
		}
	}
}

func TestCalculatorNamesWhatIsWrong(t *testing.T) {
	for expression, want := range map[string]string{
		"":                 "the end",
		"1 +":              "the end",
		"(1":               "the end",
		"1 2":              `"2"`,
		"2 ^ 3":            `"^" does not fit where it stands; a power is written **`,
		"1,000":            `","`,
		"1 / 0":            "division by zero",
		"1 // 0":           "division by zero",
		"1 % (1-1)":        "division by zero",
		"0 ** -1":          "division by zero",
		"0 ** -0.5":        "division by zero",
		"sqrt(-1)":         "not real",
		"(-8) ** (1/3)":    "not real",
		"foo(2)":           `"foo" is no number`,
		"__import__('os')": `"__import__"`,
		"sqrt 2":           `"2"`,
		"sqrt()":           `")"`,
		"sqrt(1, 2)":       `","`,
		"round(1, .5)":     "whole number",
		"round(1, 2, 3)":   `","`,
		"pi(2)":            `"("`,
		".":                `"."`,
		"１+１":              `"１"`,
	} {
		if got := calculate(expression); !strings.HasPrefix(got, "error: ") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want an error with %q", expression, got, want)
		}
	}
}

// Without its limits each of these takes minutes or gigabytes, or overflows the stack.
func TestCalculatorRefusesWhatWouldTakeLong(t *testing.T) {
	for _, c := range []struct{ expression, want string }{
		{"9**9**9", "too many digits"},
		{"9**-9**9", "too many digits"},
		{"(1/3)**9**9", "too many digits"},
		{"1.5**(2**62)", "too many digits"},
		{"3**(2**200)", "too many digits"},
		{"1e9999", "too many digits"},
		{"1e99999", "too many digits"},
		{"round(1, 10**9)", "too many digits"},
		{"round(1, -(10**9))", "too many digits"},
		{strings.Repeat("9**", 1000) + "9", "nested more than 100 deep"},
		{"2" + strings.Repeat("**2", 90), "too many digits"},
		{"(2**8000)**2", "too many digits"},
		{strings.Repeat("(2**4000)*", 300) + "1", "too many digits"},
		{strings.Repeat("(", 2000) + "1" + strings.Repeat(")", 2000), "nested more than 100 deep"},
		{strings.Repeat("-", 4000) + "1", "nested more than 100 deep"},
		{strings.Repeat("sqrt(", 700), "nested more than 100 deep"},
		{strings.Repeat("1", 10<<20), "10485760 bytes; at most 4096"},
		{"pi**9999", "too many digits"},
		{"1/(pi-pi)", "division by zero"},
	} {
		if got := calculate(c.expression); !strings.Contains(got, c.want) || len(got) > 200 {
			t.Errorf("%.20s…: %.300s, want %q", c.expression, got, c.want)
		}
	}
	for _, want := range []string{calculate("1**(2**60)"), calculate("(-1)**(2**60)")} {
		if want != "1" {
			t.Error(want)
		}
	}
	sum := "0"
	for d := 1; len(sum) < 4000; d += 2 { // its denominator would have thousands of digits
		sum += fmt.Sprintf("+1/%d", d)
	}
	if got := calculate(sum); got != "4.22100988327327" {
		t.Error(got)
	}
}

// Case P2: arguments that are not what the schema asks for are a text for the model, never an error.
func TestBadArgumentsGiveATextThatNamesTheFault(t *testing.T) {
	calculator := Calculator()
	for arguments, want := range map[string]string{
		`{"expression": "6*7"}`:           "42",
		`{"expression": "6*7", "why": 1}`: "42",
		`{"expression": "1/0"}`:           "error: division by zero",
		`{"expression": "b" and c}`:       "error: the arguments are not a JSON object: invalid character 'a' after object key:value pair",
		``:                                "error: the arguments are not a JSON object: unexpected end of JSON input",
		`"6*7"`:                           "error: the arguments are not a JSON object",
		`[1]`:                             "error: the arguments are not a JSON object",
		`null`:                            `error: the argument "expression" is missing`,
		`{}`:                              `error: the argument "expression" is missing`,
		`{"Expression": "1"}`:             `error: the argument "expression" is missing`,
		`{"expression": 42}`:              `error: the argument "expression" must be a string, not 42`,
		`{"expression": null}`:            `error: the argument "expression" must be a string, not null`,
		`{"expression": ["6*7"]}`:         `error: the argument "expression" must be a string, not ["6*7"]`,
		strings.Repeat("[", 1<<20):        "error: the arguments are not a JSON object",
		`{"expression": ` + strings.Repeat("1", 1<<20) + `}`: `error: the argument "expression" must be a string, not 1111`,
	} {
		got, err := calculator.Call(t.Context(), json.RawMessage(arguments))
		if err != nil || !strings.HasPrefix(got, want) || len(got) > 200 {
			t.Errorf("%.60s: %q, %v, want %q", arguments, got, err, want)
		}
	}
}

func TestDefinitionIsThatOfTheOpenAIAPI(t *testing.T) {
	got, err := Tool{Name: "f", Description: `says "x"`, Parameters: json.RawMessage(`{"type":"object"}`)}.Definition()
	const want = `{"function":{"description":"says \"x\"","name":"f","parameters":{"type":"object"}},"type":"function"}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	for _, tool := range []Tool{Calculator(), (&Python{}).Session().Tool()} {
		definition, err := tool.Definition()
		if err != nil || !strings.Contains(string(definition), `"required":["`) || tool.Description == "" {
			t.Errorf("%s: %s, %v", tool.Name, definition, err)
		}
	}
	if _, err := (Tool{Parameters: json.RawMessage(`{`)}).Definition(); err == nil {
		t.Error("parameters that are not JSON were accepted")
	}
}
