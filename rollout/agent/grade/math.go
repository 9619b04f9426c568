package grade

import (
	"regexp"
	"strings"
	"unicode"
)

const (
	maxAnswer = 1 << 14 // bytes; longer answers are only compared in their LaTeX form
	maxTail   = 1 << 16 // bytes of a reply that are searched for an answer without a box
)

// Math gives 1 if the mathematical answer that Extract finds in the reply is Equal to the task's, else 0. The task's is
// its Answer or, where that is empty, in Extra: under ground_truth, answer, target or label, these in reward_model or
// extra_info, or the answer of solution.
var Math = against(func(answer, reply string) bool { return Equal(answer, Extract(reply)) })

// White space and digits are Unicode's here.
var (
	phrase  = spaced(`(?i)(?:final +answer|answer|therefore|thus) *(?:is|:|=)? *([^\n<|]+)`)
	numeral = spaced(`[-+]?\p{Nd}+(?:\.\p{Nd}+)? *%?|\\frac *\{[^{}]+\} *\{[^{}]+\}`)
)

func spaced(pattern string) *regexp.Regexp {
	return regexp.MustCompile(strings.ReplaceAll(pattern, " ", `[\s\v\x1c-\x1f\x{85}\p{Z}]`))
}

// Extract finds the answer in a reply: the content of the last \boxed{…} whose braces balance, else of the last
// \fbox{…}, else what follows the last "answer is", "answer:", "therefore" or "thus" on its line, else the last number
// or fraction, these in the last 64 KiB; "" if there is none.
func Extract(reply string) string {
	for _, command := range []string{`\boxed`, `\fbox`} {
		if s := lastGroup(reply, command); s != "" {
			return s
		}
	}
	reply = reply[max(0, len(reply)-maxTail):]
	found := phrase.FindAllStringSubmatch(reply, -1)
	for i := len(found) - 1; i >= 0; i-- {
		if s := strings.TrimSpace(found[i][1]); s != "" {
			return s
		}
	}
	if found := numeral.FindAllString(reply, -1); found != nil {
		return strings.TrimSpace(found[len(found)-1])
	}
	return ""
}

// lastGroup is the content of the last balanced group after the command, in one pass from the end.
func lastGroup(text, command string) string {
	var ends []int
	for i := len(text) - 1; i >= 0; i-- {
		if n := len(ends) - 1; text[i] == '}' {
			ends = append(ends, i)
		} else if text[i] == '{' && n >= 0 {
			if strings.HasSuffix(strings.TrimRightFunc(text[:i], unicode.IsSpace), command) {
				return strings.TrimSpace(text[i+1 : ends[n]])
			}
			ends = ends[:n]
		}
	}
	return ""
}

// Equal reports whether two mathematical answers are the same. They are brought into a LaTeX form and, if these differ,
// into a plain form; equal strings are equal answers. Tuples and intervals are then compared element by element in order,
// with the same brackets. An element that is an integer or a fraction of integers equals only itself (4 is not √16, 2/4
// not 1/2); others are equal if they are identical. Percent signs, degrees, units of length and time, and a left side of
// '=' of up to two characters do not count. "" equals nothing.
//
// The rules are those of the grader in the examples of Molt in Python. Differences: an identity that sympy's simplify
// overlooks, as one of a decimal's root, is one here; factorials, Python's own operators and imaginary units as 3j are
// never evaluated; a decimal beside a variable or a root is exact; alphabets as \mathbb lose their name, accents keep it;
// a macro that lacks an argument leaves the answer as it is; answers above 16 KiB are compared in their LaTeX form only.
func Equal(truth, answer string) bool {
	truth, answer = strings.ToValidUTF8(truth, "�"), strings.ToValidUTF8(answer, "�")
	if truth == "" || answer == "" || latexForm(truth) == latexForm(answer) {
		return truth != "" && answer != ""
	}
	if max(len(truth), len(answer)) > maxAnswer {
		return false
	}
	t, a := plainForm(truth), plainForm(answer)
	if t == a || t == "" || a == "" {
		return t == a
	}
	want, got := elements(t), elements(a)
	if len(want) != len(got) || len(want) > 1 && (t[0] != a[0] || t[len(t)-1] != a[len(a)-1]) {
		return false
	}
	for i, w := range want {
		_, wantInt := integer(w)
		_, gotInt := integer(got[i])
		if bothFractions := fraction.MatchString(w) && fraction.MatchString(got[i]); bothFractions && w != got[i] ||
			!bothFractions && (wantInt != gotInt || !identical(w, got[i])) {
			return false
		}
	}
	return true
}

var fraction = regexp.MustCompile(`^-?[0-9]+.?/0*[1-9][0-9]*.?\n?$`)

// elements are those of a tuple or interval, or the whole.
func elements(s string) []string {
	const brackets = "()[]"
	s = joinThousands(s)
	if n := len(s); n > 2 && strings.Contains(brackets, s[:1]) && strings.Contains(brackets, s[n-1:]) &&
		!strings.ContainsAny(s[1:n-1], brackets) {
		return strings.Split(s[1:n-1], ",")
	}
	return []string{s}
}
