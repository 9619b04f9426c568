package grade

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/molt-go/molt/rollout"
)

type reference struct {
	Pairs []struct {
		Truth      string `json:"ground_truth"`
		Prediction string
		Equal      bool
		Grade      bool   `json:"grade_answer"`
		Tier1Truth string `json:"tier1_truth"`
		Tier1Pred  string `json:"tier1_prediction"`
		Tier2Truth string `json:"tier2_truth"`
		Tier2Pred  string `json:"tier2_prediction"`
		ByTier1    bool   `json:"decided_by_tier1_string"`
		ByTier2    bool   `json:"decided_by_tier2_string"`
	}
	Extract []struct{ Text, Extracted string }
	Score   []struct {
		Query, Prompt string
		Label         json.RawMessage
		Result        struct {
			Reward     float64
			Prediction string
			Target     string
			NoAnswer   float64 `json:"missing_answer"`
			NoTarget   float64 `json:"missing_target"`
		}
	} `json:"score_response"`
}

func load(t testing.TB) (r reference) {
	t.Helper()
	raw, err := os.ReadFile("../../../testdata/reference/math_grader.json")
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil || len(r.Pairs) != 132 || len(r.Extract) != 20 || len(r.Score) != 9 {
		t.Fatalf("reference: %v, %d pairs, %d texts, %d scores", err, len(r.Pairs), len(r.Extract), len(r.Score))
	}
	return r
}

func TestMathEqualsTheReferenceInEveryPairFormAndStage(t *testing.T) {
	for _, p := range load(t).Pairs {
		if got := Equal(p.Truth, p.Prediction); got != p.Equal {
			t.Errorf("Equal(%q, %q) = %t", p.Truth, p.Prediction, got)
		}
		for _, c := range []struct{ form, got, want string }{
			{"LaTeX", latexForm(p.Truth), p.Tier1Truth}, {"LaTeX", latexForm(p.Prediction), p.Tier1Pred},
			{"plain", plainForm(p.Truth), p.Tier2Truth}, {"plain", plainForm(p.Prediction), p.Tier2Pred},
		} {
			if c.got != c.want {
				t.Errorf("%q, %q: %s form %q, want %q", p.Truth, p.Prediction, c.form, c.got, c.want)
			}
		}
		if got := latexForm(p.Truth) == latexForm(p.Prediction); got != p.ByTier1 {
			t.Errorf("%q, %q: LaTeX forms equal: %t", p.Truth, p.Prediction, got)
		}
		if got := plainForm(p.Truth) == plainForm(p.Prediction); got != p.ByTier2 {
			t.Errorf("%q, %q: plain forms equal: %t", p.Truth, p.Prediction, got)
		}
	}
}

func TestExtractEqualsTheReference(t *testing.T) {
	for _, c := range load(t).Extract {
		if got := Extract(c.Text); got != c.Extracted {
			t.Errorf("Extract(%q) = %q, want %q", c.Text, got, c.Extracted)
		}
	}
}

// The reference looks for an answer in the prompt too; here a reply is what the policy generated. Its 0 for a task
// without an answer is an error here.
func TestMathScoresAsTheReference(t *testing.T) {
	for _, c := range load(t).Score {
		task := rollout.Task{Extra: c.Label}
		if err := json.Unmarshal(c.Label, &task.Answer); err == nil {
			task.Extra = nil
		}
		got, err := Math(t.Context(), task, c.Query)
		if got != c.Result.Reward || (err != nil) != (c.Result.NoTarget == 1) {
			t.Errorf("label %s, reply %q: %v, %v, want %+v", c.Label, c.Query, got, err, c.Result)
		}
		if answer := Extract(c.Query); answer != c.Result.Prediction || (answer == "") != (c.Result.NoAnswer == 1) {
			t.Errorf("reply %q: answer %q, want %+v", c.Query, answer, c.Result)
		}
		if answer, _ := answerOf(task); answer != c.Result.Target {
			t.Errorf("label %s: answer %q, want %q", c.Label, answer, c.Result.Target)
		}
	}
}

func TestMathTakesNoDerivationForAnAnswer(t *testing.T) {
	for extra, want := range map[string]string{
		`{"solution":"so it is 3","answer":"3"}`: "3", `{"solution":"so it is 3"}`: "", `{"extra_info":{"answer":0.50}}`: "0.50",
		`{"solution":{"extracted":"7"}}`: "7", `[1]`: "", `{"answer":null,"target":"x"}`: "x", `{"answer":`: "",
	} {
		got, err := answerOf(rollout.Task{Extra: json.RawMessage(extra)})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v, want %q", extra, got, err, want)
		}
	}
}

func TestEveryAnswerEqualsItselfAndEqualIsSymmetric(t *testing.T) {
	ref := load(t)
	for _, c := range ref.Extract {
		if x := Extract(c.Text); x != "" && !Equal(x, x) {
			t.Errorf("%q differs from itself", x)
		}
	}
	for _, p := range ref.Pairs {
		if p.Truth != "" && !Equal(p.Truth, p.Truth) || Equal(p.Prediction, p.Truth) != p.Equal {
			t.Errorf("Equal(%q, %q) is not reflexive or not symmetric", p.Truth, p.Prediction)
		}
	}
}

func TestEqualKnowsAlgebra(t *testing.T) {
	for _, c := range [][2]string{
		{`x^2-5x+6`, `(x-2)(x-3)`}, {`\frac{1}{\sqrt{3}}`, `\frac{\sqrt3}{3}`}, {`\sqrt{3+2\sqrt{2}}`, `1+\sqrt2`},
		{`\frac{4}{3}\pi`, `4\pi/3`}, {`2\ln(2)`, `\ln(4)`}, {`2^{n}\cdot 2`, `2*2^n`}, {`2^x2^x`, `4^x`}, {`x^{-1}`, `\frac{1}{x}`},
		{`(x^2-1)/(x-1)`, `x+1`}, {`2.4x`, `12x/5`}, {`3 4/5`, `\frac{19}{5}`}, {`33\frac{1}{3}`, `100/3`}, {`(0.5,1)`, `(1/2,1)`},
		{`\sqrt{x}\sqrt{x}`, `x`}, {`-2^2x`, `-4x`}, {`1.5\times 10^{-3}`, `0.0015`}, {`x(x+1)`, `x^2+x`}, {`\theta/2`, `0.5\theta`},
		{`\begin{pmatrix} 1 & \frac{1}{2} \\ 3 & 4 \end{pmatrix}`, `\begin{bmatrix}1&\frac12\\3&4\end{bmatrix}`}, {`\mathbf{7}`, `7`},
		{`x-x`, `0*x`}, {`18`, `18.00000001`},
	} {
		if !Equal(c[0], c[1]) || !Equal(c[1], c[0]) {
			t.Errorf("%q and %q differ", c[0], c[1])
		}
	}
	for _, c := range [][2]string{
		{`\sqrt{x^2}`, `x`}, {`\sqrt{xy}`, `\sqrt{x}\sqrt{y}`}, {`\sqrt{x/y}`, `\sqrt{x}/\sqrt{y}`}, {`\sqrt{-4}`, `2i`}, {`2^{0.5}`, `\sqrt2`},
		{`x^{0.5}`, `\sqrt{x}`}, {`\pi`, `3.141592653589793`}, {`\pi`, `3.14159265358979`}, {`\sqrt2`, `1.4142135623730951`},
		{`1/3`, `0.33333333333333333`}, {`-x^2`, `(-x)^2`}, {`a/bc`, `ac/b`}, {`1/0`, `2/0`}, {`x/(x-x)`, `x+1`}, {`2x`, `2y`}, {`xyz`, `zyx`},
		{`x^{10}`, `x^5x^5`}, {`\vec{v}`, `v`}, {`\alpha`, `\beta`}, {`x=1,y=2`, `y=2,x=1`}, {`05.5x/1`, `05x`}, {`12345678901234567.5x`,
			`12345678901234567.25x`}, {`[1,2)`, `[1.0,2.0]`}, {`(0.5,1]`, `[1/2,1]`}, {`as/1`, `sa`}, {`x<5`, `5>x`}, {`0.1+0.2`, `0.3`}, {`2\pm\sqrt{3}`, `2+\sqrt{3}`},
	} {
		if Equal(c[0], c[1]) || Equal(c[1], c[0]) {
			t.Errorf("%q and %q are equal", c[0], c[1])
		}
	}
}

// A policy must not earn a reward by drowning the difference in rounding errors.
func TestRoundingErrorsMakeNothingEqual(t *testing.T) {
	for _, n := range []string{"10**9", "10**20", "10**99", "1e20", "1e300", "(10**20)**20"} {
		for _, form := range []string{"%x-%x", "(%x+x)-%x", "sqrt(2)*%-sqrt(2)*%", "%pi-%pi", "1/(%x+1)", "ln(%x)-ln(%x)", "x**-1*%-%/x"} {
			answer := strings.ReplaceAll(form, "%", "("+n+")") + "+2x"
			if Equal("x+1", answer) || Equal("sqrt(3)", strings.ReplaceAll(answer, "x", "sqrt(2)")) {
				t.Errorf("%s equals x+1 or sqrt(3)", answer)
			}
		}
	}
}

var hostile = func() []string {
	const n = 1 << 18
	res := []string{"9^9^9^9", "1e999999", "1e-999999", "((9^9)^9)^9", "(9**99)**99", "9**9**9**9", "x**99**99", "1e99999999999999999999x", "\xff\xfe",
		"sqrt", "ln(0)x", "0**-1+x", "\\", "\\sqrt[", "\\begin{array}", "\\end{", "\\text{", "}{", "{", "\\frac", "\\frac1", "^", "(", "()", "-", "1e308*10.5x"}
	for _, s := range []string{"{", "}", "(", "[", "-", "9", "\\boxed{", "\\boxed {}", "\\frac", "\\frac1", "\\sqrt{", "\\sqrt", "\\begin{pmatrix}", "1,", "1,000",
		"answer", "answer ", "x+", "x^", "((x)", "\\text{ ", "&", "degree", "1 ", "9/", "=", "é", "\\", "sqrt("} {
		res = append(res, strings.Repeat(s, n/len(s)), strings.Repeat(s, maxAnswer/len(s)-1), strings.Repeat(s, 300), strings.Repeat(s, 199)+"x")
	}
	return append(res, strings.Repeat("{9", 5<<20), strings.Repeat(`\boxed{`, 10<<20/7))
}()

func TestHostileAnswersGetAVerdict(t *testing.T) {
	for _, s := range hostile {
		if Equal("x+1", s) || Equal(s, "x+1") {
			t.Errorf("%.20q… equals x+1", s)
		}
		if v, err := Math(t.Context(), rollout.Task{Answer: "no such answer"}, s); v != 0 || err != nil {
			t.Errorf("%.20q…: %v, %v", s, v, err)
		}
	}
}

func FuzzEqual(f *testing.F) {
	for _, p := range load(f).Pairs {
		f.Add(p.Truth, p.Prediction)
	}
	for _, s := range hostile {
		if len(s) < 1000 {
			f.Add(s, "x")
		}
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if Equal(a, b) != Equal(b, a) || !Equal(a, a) != (a == "") {
			t.Errorf("Equal(%q, %q) is not symmetric, or not reflexive", a, b)
		}
		if x := Extract(a); x != "" && !Equal(x, x) {
			t.Errorf("%q extracted from %q differs from itself", x, a)
		}
	})
}
