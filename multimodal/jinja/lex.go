package jinja

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	endOfFile kind = iota
	data           // text between tags
	name
	integer
	float
	str
	operator
	begin // "{{" or "{%"
	end   // "}}" or "%}"
)

type token struct {
	kind kind
	text string
	line int
}

var (
	rawBegin = regexp.MustCompile(`^\{%[-+]?\s*raw\s*(-%\}\s*|%\})`)
	rawEnd   = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*(\+%\}|-%\}\s*|%\}\n?)`)
	floats   = regexp.MustCompile(`^(\d+_)*\d+((\.(\d+_)*\d+)?[eE][-+]?(\d+_)*\d+|\.(\d+_)*\d+)`)
	integers = regexp.MustCompile(`^(0[bB](_?[01])+|0[oO](_?[0-7])+|0[xX](_?[0-9a-fA-F])+|[1-9](_?\d)*|0(_?0)*)`)
	words    = regexp.MustCompile(`^[\pL_][\pL\pM\pN_]*`)
	symbols  = regexp.MustCompile(`^(==|!=|<=|>=|\*\*|//|[-+*/%~\[\](){}<>=.:|,])`)
	newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")
)

type lexer struct {
	src       string
	pos       int
	line      *int
	tokens    []token
	lineStart bool // the last tag took its newline with it
}

// lex cuts a template into tokens and removes the white space that signs, trim_blocks and lstrip_blocks remove.
func lex(src string, line *int) []token {
	l := &lexer{src: strings.TrimSuffix(newlines.Replace(src), "\n"), line: line, lineStart: true}
	for l.pos < len(l.src) {
		l.data()
	}
	return append(l.tokens, token{kind: endOfFile, line: *line})
}

func (l *lexer) emit(k kind, text string) { l.tokens = append(l.tokens, token{k, text, *l.line}) }

// skip moves on by n bytes.
func (l *lexer) skip(n int) {
	part := l.src[l.pos : l.pos+n]
	*l.line += strings.Count(part, "\n")
	l.pos += n
	l.lineStart = strings.HasSuffix(part, "\n")
}

// strip is the text before a tag with the given sign, less what the tag takes away.
func (l *lexer) strip(text string, sign string, isTag bool) string {
	if sign == "-" {
		return strings.TrimRightFunc(text, isSpace)
	}
	at := strings.LastIndexByte(text, '\n') + 1
	if isTag && sign != "+" && (at > 0 || l.lineStart) && strings.TrimFunc(text[at:], isSpace) == "" {
		return text[:at]
	}
	return text
}

// data reads the text up to the next tag, and the tag.
func (l *lexer) data() {
	rest := l.src[l.pos:]
	at := strings.IndexByte(rest, '{')
	for at >= 0 && (at+1 == len(rest) || !strings.ContainsRune("{%#", rune(rest[at+1]))) {
		if n := strings.IndexByte(rest[at+1:], '{'); n < 0 {
			at = -1
		} else {
			at += 1 + n
		}
	}
	if at < 0 {
		l.emit(data, rest)
		l.skip(len(rest))
		return
	}
	open, sign := rest[at:at+2], ""
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign = rest[at+2 : at+3]
	}
	if kept := l.strip(rest[:at], sign, open != "{{"); kept != "" {
		l.emit(data, kept)
	}
	l.skip(at)
	if open == "{%" {
		if m := rawBegin.FindString(l.src[l.pos:]); m != "" {
			l.skip(len(m))
			l.raw()
			return
		}
	}
	l.skip(2 + len(sign))
	switch open {
	case "{#":
		l.comment()
	case "{{":
		l.tag(open, "}}", "")
	default:
		l.tag(open, "%}", "\n")
	}
}

func (l *lexer) raw() {
	m := rawEnd.FindStringSubmatchIndex(l.src[l.pos:])
	if m == nil {
		fail("TemplateSyntaxError: missing end of raw directive")
	}
	rest := l.src[l.pos:]
	l.emit(data, l.strip(rest[:m[0]], rest[m[2]:m[3]], true))
	l.skip(m[1])
}

func (l *lexer) comment() {
	n := strings.Index(l.src[l.pos:], "#}")
	if n < 0 {
		fail("TemplateSyntaxError: missing end of comment tag")
	}
	sign := ""
	if n > 0 {
		sign = l.src[l.pos+n-1 : l.pos+n]
	}
	l.skip(n)
	l.close(2, sign, "\n")
}

// close moves behind the n bytes that end a tag and the white space that goes with them.
func (l *lexer) close(n int, sign, trim string) {
	rest := l.src[l.pos+n:]
	switch {
	case sign == "-":
		n += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case sign != "+" && trim != "" && strings.HasPrefix(rest, trim):
		n += len(trim)
	}
	l.skip(n)
}

// tag reads the tokens of a tag up to its end.
func (l *lexer) tag(open, closing, trim string) {
	l.emit(begin, open)
	var brackets []byte
	for l.pos < len(l.src) {
		rest := l.src[l.pos:]
		if c, n := utf8.DecodeRuneInString(rest); isSpace(c) {
			l.skip(n)
			continue
		}
		if len(brackets) == 0 {
			sign := ""
			if rest[0] == '-' || rest[0] == '+' && closing == "%}" {
				sign = rest[:1]
			}
			if strings.HasPrefix(rest[len(sign):], closing) {
				l.emit(end, closing)
				l.close(len(sign)+2, sign, trim)
				return
			}
		}
		brackets = l.token(rest, brackets)
	}
	fail("TemplateSyntaxError: unexpected end of template, expected %q", closing)
}

func (l *lexer) token(rest string, brackets []byte) []byte {
	afterDot := l.src[l.pos-1] == '.'
	match := func(k kind, re *regexp.Regexp) bool {
		m := re.FindString(rest)
		if m != "" {
			l.emit(k, m)
			l.skip(len(m))
		}
		return m != ""
	}
	switch {
	case !afterDot && match(float, floats), match(integer, integers), match(name, words):
	case rest[0] == '\'' || rest[0] == '"':
		n := 1
		for n < len(rest) && rest[n] != rest[0] {
			if rest[n] == '\\' {
				n++
			}
			n++
		}
		if n >= len(rest) {
			fail("TemplateSyntaxError: string without end")
		}
		l.emit(str, unescape(rest[1:n]))
		l.skip(n + 1)
	case match(operator, symbols):
		switch c := rest[0]; c {
		case '(', '[', '{':
			brackets = append(brackets, closers[c])
		case ')', ']', '}':
			if len(brackets) == 0 || brackets[len(brackets)-1] != c {
				fail("TemplateSyntaxError: unexpected '%c'", c)
			}
			brackets = brackets[:len(brackets)-1]
		}
	default:
		c, _ := utf8.DecodeRuneInString(rest)
		fail("TemplateSyntaxError: unexpected char %q", c)
	}
	return brackets
}

var closers = map[byte]byte{'(': ')', '[': ']', '{': '}'}

var escapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape resolves a Python string literal's escapes; unknown ones stay as they are.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		digits, base := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c], 16
		if c >= '0' && c <= '7' {
			i--
			base = 8
			for digits < 3 && i+1+digits < len(s) && s[i+1+digits] >= '0' && s[i+1+digits] <= '7' {
				digits++
			}
		}
		known, ok := escapes[c]
		switch {
		case digits > 0:
			code, err := strconv.ParseUint(s[i+1:min(i+1+digits, len(s))], base, 32)
			if err != nil || i+digits >= len(s) || !utf8.ValidRune(rune(code)) {
				fail("TemplateSyntaxError: bad escape '\\%c' in a string", c)
			}
			b.WriteRune(rune(code))
			i += digits
		case c == 'N':
			fail("TemplateSyntaxError: named characters (\\N) are not supported")
		case ok:
			b.WriteString(known)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

// isSpace is Python's str.isspace for one character.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }
