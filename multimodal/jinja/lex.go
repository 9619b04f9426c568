package jinja

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

type kind uint8

const (
	endOfFile kind = iota
	data           // text between tags
	number
	sign // an operator, also "is not" and "not in"; or a tag's "{{", "}}", "{%" or "%}"
	name
	str
)

type token struct {
	kind kind
	text string
	line int
}

const space = `[\s\v\x1c-\x1f\x{85}\pZ]*` // Python's

var (
	opening = regexp.MustCompile(`\{[{%#]([-+]?)`)
	rawTag  = regexp.MustCompile(`^\{%[-+]?` + space + `raw` + space + `(?:-%\}` + space + `|%\})`)
	rawEnd  = regexp.MustCompile(`\{%([-+]?)` + space + `endraw` + space + `(?:\+%\}|-%\}` + space + `|%\}\n?)`)
	note    = regexp.MustCompile(`\+#\}|-#\}` + space + `|#\}\n?`)
	closing = map[string]*regexp.Regexp{
		"{{": regexp.MustCompile(`^(?:-\}\}` + space + `|\}\})`),
		"{%": regexp.MustCompile(`^(?:\+%\}|-%\}` + space + `|%\}\n?)`),
	}
	// The groups are the kinds number, sign, name and str.
	tokens = regexp.MustCompile(`(?s)^(?:` +
		`((?:\d+_)*\d+(?:\.(?:\d+_)*\d+)?[eE][-+]?(?:\d+_)*\d+|(?:\d+_)*\d+\.(?:\d+_)*\d+|` +
		`0[xX](?:_?[0-9a-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)|` +
		`(is\s+not\b|not\s+in\b|==|!=|<=|>=|\*\*|//|[-+*/%~\[\](){}<>=.:|,])|` +
		`([\pL_][\pL\pM\pN_]*)|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))`)
	escape   = regexp.MustCompile(`(?s)\\(?:x..|u.{4}|U.{8}|[0-7]{1,3}|.)`)
	newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")
)

type lexer struct {
	rest      string
	line      *int
	tokens    []token
	lineStart bool // the last tag took its newline with it
}

// lex cuts a template into tokens and removes the white space that signs, trim_blocks and lstrip_blocks remove.
func lex(src string, line *int) []token {
	l := &lexer{rest: strings.TrimSuffix(newlines.Replace(src), "\n"), line: line, lineStart: true}
	for l.rest != "" {
		l.next()
	}
	return append(l.tokens, token{kind: endOfFile, line: *line})
}

func (l *lexer) emit(k kind, text string) { l.tokens = append(l.tokens, token{k, text, *l.line}) }

// skip moves on by n bytes.
func (l *lexer) skip(n int) {
	part := l.rest[:n]
	*l.line += strings.Count(part, "\n")
	l.lineStart = strings.HasSuffix(part, "\n")
	l.rest = l.rest[n:]
}

// data emits the next n bytes, less the white space that a tag with the given sign takes away before it.
func (l *lexer) data(n int, sign string, isBlock bool) {
	text := l.rest[:n]
	at := strings.LastIndexByte(text, '\n') + 1
	if sign == "-" {
		text = strings.TrimRightFunc(text, isSpace)
	} else if isBlock && sign == "" && (at > 0 || l.lineStart) && strings.TrimFunc(text[at:], isSpace) == "" {
		text = text[:at]
	}
	if text != "" {
		l.emit(data, text)
	}
	l.skip(n)
}

// next reads the text up to the next tag, and the tag.
func (l *lexer) next() {
	m := opening.FindStringSubmatchIndex(l.rest)
	if m == nil {
		l.data(len(l.rest), "", false)
		return
	}
	open := l.rest[m[0] : m[0]+2]
	l.data(m[0], l.rest[m[2]:m[3]], open != "{{")
	switch raw := rawTag.FindString(l.rest); {
	case raw != "":
		l.skip(len(raw))
		end := rawEnd.FindStringSubmatchIndex(l.rest)
		check(end != nil, "TemplateSyntaxError: missing end of raw directive")
		l.data(end[0], l.rest[end[2]:end[3]], true)
		l.skip(end[1] - end[0])
	case open == "{#":
		end := note.FindStringIndex(l.rest[2:])
		check(end != nil, "TemplateSyntaxError: missing end of comment tag")
		l.skip(2 + end[1])
	default:
		l.emit(sign, open)
		l.skip(m[1] - m[0])
		l.tag(open)
	}
}

// tag reads the tokens of a tag up to its end.
func (l *lexer) tag(open string) {
	for depth := 0; ; {
		l.skip(len(l.rest) - len(strings.TrimLeftFunc(l.rest, isSpace)))
		if end := closing[open].FindString(l.rest); end != "" && depth == 0 {
			l.emit(sign, map[string]string{"{{": "}}", "{%": "%}"}[open])
			l.skip(len(end))
			return
		}
		m := tokens.FindStringSubmatchIndex(l.rest)
		check(m != nil, "TemplateSyntaxError: unexpected char or end of the template in a tag: %.10q", l.rest)
		group := slices.IndexFunc([]int{2, 4, 6, 8}, func(at int) bool { return m[at] >= 0 })
		k, text := number+kind(group), l.rest[m[2+2*group]:m[1]]
		switch {
		case k == str:
			text = unescape(text[1 : len(text)-1])
		case strings.Contains("([{", text):
			depth++
		case strings.Contains(")]}", text):
			depth--
			check(depth >= 0, "TemplateSyntaxError: unexpected '%s'", text)
		case k == sign:
			text = strings.Join(strings.Fields(text), " ")
		}
		l.emit(k, text)
		l.skip(m[1])
	}
}

// unescape resolves a Python string literal's escapes; unknown ones stay as they are.
func unescape(s string) string {
	return escape.ReplaceAllStringFunc(s, func(e string) string {
		switch c, _, rest, err := strconv.UnquoteChar(e, 0); {
		case e == "\\\n":
			return ""
		case e == `\'` || e == `\"`:
			return e[1:]
		case err == nil && rest == "":
			return string(c)
		}
		check(!strings.ContainsAny(e[1:2], "xuUN01234567"), "TemplateSyntaxError: bad or unsupported escape '%s' in a string", e)
		return e
	})
}

// isSpace is Python's str.isspace for one character.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }
