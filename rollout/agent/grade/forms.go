package grade

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// rewrite replaces in the order given, each over the whole result of the one before.
func rewrite(s string, oldNew ...string) string {
	for i := 0; i < len(oldNew); i += 2 {
		s = strings.ReplaceAll(s, oldNew[i], oldNew[i+1])
	}
	return s
}

var (
	onlyText = regexp.MustCompile(`^\\text\{(.+?)\}\n?$`)
	ratio    = regexp.MustCompile(`^(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)$`)
)

// latexForm is an answer as LaTeX without what does not matter: spaces, sizes of brackets and fractions, degrees,
// dollars, percent, a description in \text{ …}, a left side of '=' of up to two characters. a/b becomes \frac{a}{b}.
func latexForm(s string) string {
	s = strings.TrimSpace(s)
	if m := onlyText.FindStringSubmatch(s); m != nil {
		s = strings.TrimSpace(m[1])
	}
	s = rewrite(s, "\n", "", `\!`, "", `\\`, `\`, "tfrac", "frac", "dfrac", "frac", `\left`, "", `\right`, "",
		`^{\circ}`, "", `^\circ`, "", "°", "", `\$`, "")
	s, _, _ = strings.Cut(s, `\text{ `)
	s = rewrite(s, `\%`, "", "%", "", " .", " 0.", "{.", "{0.")
	if strings.HasPrefix(s, ".") {
		s = "0" + s
	}
	if left, right, ok := strings.Cut(s, "="); ok && !strings.Contains(right, "=") && utf8.RuneCountInString(left) <= 2 {
		s = right
	}
	s = braceArguments(strings.ReplaceAll(braceArguments(s, `\sqrt`, 1), " ", ""), `\frac`, 2)
	if s == "0.5" {
		return `\frac{1}{2}`
	}
	return ratio.ReplaceAllString(s, `\frac{$1}{$2}`)
}

// braceArguments writes \frac12 as \frac{1}{2}. A second argument that is missing leaves s as it is.
func braceArguments(s, command string, n int) string {
	parts := strings.Split(s, command)
	var b strings.Builder
	b.WriteString(parts[0])
	for _, p := range parts[1:] {
		if n == 2 && !strings.HasPrefix(p, "{") && utf8.RuneCountInString(p) < 2 {
			return s
		}
		b.WriteString(command)
		for k := 0; k < n && p != "" && p[0] != '{'; k++ {
			_, size := utf8.DecodeRuneInString(p)
			b.WriteString("{" + p[:size] + "}")
			p = p[size:]
		}
		b.WriteString(p)
	}
	return b.String()
}

var (
	units = func() (res []*regexp.Regexp) {
		for unit := range strings.FieldsSeq("degree cm centimeter meter mile second minute hour day week month year foot feet inch yard") {
			res = append(res, regexp.MustCompile(unit+`(es)?(s)? *(\^[0-9]+)?`))
		}
		return res
	}()
	degrees   = regexp.MustCompile(`\^ *\\circ`)
	thinComma = regexp.MustCompile(`,\\! *`)
	minus     = regexp.MustCompile(`- *`)
	mixed     = regexp.MustCompile(`([0-9]) +([0-9])`)
	thousands = regexp.MustCompile(`(\p{Nd}),(\p{Nd}{3})($|\P{Nd})`)
)

// plainForm is an answer as plain text in small letters: without units, dollars, percent, spaces and braces, its LaTeX
// turned into text, 7 3/4 as 7+3/4, and a number that is an integer written as one.
func plainForm(s string) string {
	if m := onlyText.FindStringSubmatch(s); m != nil {
		s = m[1]
	}
	s = rewrite(s, `\%`, "%", `\$`, "$", "$", "", "%", "", " or ", " , ", " and ", " , ",
		"million", "*10^6", "billion", "*10^9", "trillion", "*10^12")
	for _, unit := range units {
		s = unit.ReplaceAllString(s, "")
	}
	s = strings.ReplaceAll(degrees.ReplaceAllString(s, ""), "°", "")
	if strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}") {
		s = s[1 : len(s)-1]
	}
	s = thinComma.ReplaceAllString(s, "")
	if f, ok := integer(s); ok && !strings.Contains(s, ",") {
		s = digits(math.RoundToEven(f))
	}
	if strings.Contains(s, `\`) {
		s = latexText(s)
	}
	s = mixed.ReplaceAllString(minus.ReplaceAllString(s, "-"), "${1}+$2")
	s = strings.ToLower(rewrite(s, " ", "", "{", "", "}", ""))
	if f, ok := integer(s); ok {
		s = digits(math.Trunc(f))
	}
	return s
}

// joinThousands takes out commas between groups of three digits.
func joinThousands(s string) string {
	for joined := thousands.ReplaceAllString(s, "$1$2$3"); joined != s; joined = thousands.ReplaceAllString(s, "$1$2$3") {
		s = joined
	}
	return s
}

// integer reads a number that is an integer to 1e-7, with or without commas.
func integer(s string) (float64, bool) {
	f, ok := float(joinThousands(s))
	return f, ok && math.Abs(f-math.RoundToEven(f)) <= 1e-7
}

// float reads a finite decimal number: not the hexadecimal ones of Go.
func float(s string) (float64, bool) {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return f, err == nil && !math.IsInf(f, 0) && !strings.ContainsAny(s, "xX")
}

// digits writes an integer in full, and -0 as 0.
func digits(f float64) string { return strconv.FormatFloat(f+0, 'f', 0, 64) }
