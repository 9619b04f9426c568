package grade

import (
	"slices"
	"strings"
	"unicode"
)

// macros is what stands for a command without arguments. A command that is neither here nor read by macro loses its
// name, so that its arguments become plain groups.
var macros = func() map[string]string {
	m := map[string]string{",": " ", ";": " ", ":": " ", " ": " ", "quad": "  ", "qquad": "    ", `\`: "\n"}
	words := strings.Fields(symbols)
	for i := 0; i < len(words); i += 2 {
		m[words[i]] = words[i+1]
	}
	return m
}()

// latexText turns LaTeX into text as pylatexenc does: \frac{a}{b} into a/b, \sqrt[n]{x} into sqrt(x), a matrix into
// [ a b; c d ]. What lacks an argument stays as it is.
func latexText(s string) string {
	s = rewrite(s, `\tfrac`, `\frac`, `\dfrac`, `\frac`, `\frac`, ` \frac`, "~", "\u00a0", "---", "—", "--", "–", "''", "”")
	l := latex{src: []rune(s)}
	var b strings.Builder
	for l.pos < len(l.src) && !l.failed {
		part, _ := l.text(false)
		b.WriteString(part)
	}
	if l.failed {
		return s
	}
	return strings.TrimSpace(rewrite(b.String(), "√", "sqrt", "π", "pi", "∞", "inf", "∪", "U", "·", "*", "×", "*"))
}

type latex struct {
	src    []rune
	pos    int
	failed bool
}

// text reads up to the end of its group or environment, or of its cell of a matrix, and says what ended it.
func (l *latex) text(cell bool) (text, end string) {
	var b strings.Builder
	for l.pos < len(l.src) && !l.failed {
		c := l.src[l.pos]
		switch {
		case c == '}' || c == '&' && cell:
			l.pos++
			return b.String(), string(c)
		case c == '&':
			l.pos++
			b.WriteString("   ")
		case c == '\\':
			name := l.name()
			if name == "end" {
				l.argument()
			} else if name != `\` || !cell {
				b.WriteString(l.macro(name))
				continue
			}
			return b.String(), name
		case unicode.IsSpace(c): // an argument would skip it
			l.pos++
			b.WriteRune(c)
		default:
			b.WriteString(l.argument())
		}
	}
	return b.String(), ""
}

// skip moves over characters.
func (l *latex) skip(over func(rune) bool) {
	for l.pos < len(l.src) && over(l.src[l.pos]) {
		l.pos++
	}
}

// name reads a command's: a backslash and letters, with the spaces after them, or one other character.
func (l *latex) name() string {
	l.pos++
	start := l.pos
	l.skip(func(c rune) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' })
	if l.pos == start {
		l.pos = min(start+1, len(l.src))
		return string(l.src[start:l.pos])
	}
	name := string(l.src[start:l.pos])
	l.skip(unicode.IsSpace)
	return name
}

// argument reads a group, a command or a character.
func (l *latex) argument() string {
	l.skip(unicode.IsSpace)
	if l.pos == len(l.src) || l.src[l.pos] == '}' {
		l.failed = true
		return ""
	}
	c := l.src[l.pos]
	if c == '\\' {
		return macros[l.name()]
	}
	if l.pos++; c != '{' {
		return string(c)
	}
	s, _ := l.text(false)
	return s
}

// option skips an argument in brackets.
func (l *latex) option() {
	l.skip(unicode.IsSpace)
	if l.pos < len(l.src) && l.src[l.pos] == '[' {
		l.skip(func(c rune) bool { return c != ']' })
		l.pos = min(l.pos+1, len(l.src))
	}
}

// macro reads the arguments of a command and gives its text.
func (l *latex) macro(name string) string {
	switch name {
	case "frac", "nicefrac":
		return l.argument() + "/" + l.argument()
	case "sqrt":
		l.option()
		return "√(" + l.argument() + ")"
	case "textcolor", "mbox", "textmd", "textsf", "texttt", "textup", "label", "hspace", "vspace", "hphantom", "vphantom", "color":
		l.argument() // pylatexenc drops it, too
		return ""
	case "begin":
		return l.environment(l.argument())
	}
	return macros[name]
}

// environment reads one to its end. Cells of a matrix that hold nothing at all do not count.
func (l *latex) environment(name string) string {
	matrix := slices.Contains([]string{"array", "pmatrix", "bmatrix", "smallmatrix", "psmallmatrix", "bsmallmatrix"}, name)
	if name == "array" {
		l.option()
		l.argument()
	}
	var b strings.Builder
	for end := ""; l.pos < len(l.src) && end != "end" && !l.failed; {
		var part string
		if part, end = l.text(matrix); matrix && part != "" {
			part = strings.TrimSpace(part) + " "
		}
		if end == `\` {
			l.option()
			part = strings.TrimSpace(part) + "; "
		}
		b.WriteString(part)
	}
	if matrix {
		return "[ " + b.String() + "]"
	}
	return b.String()
}
