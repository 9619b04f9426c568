package jinja

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

type kind uint8

const (
	data   kind = iota // text between tags
	number             // this and the next three are the groups of the pattern below
	sign               // an operator, also "is not" and "not in"; or a tag's "{{", "}}", "{%" or "%}"
	name
	str
	endOfFile
)

type token struct {
	kind kind
	text string
	at   int
}

const space = `[\s\v\x1c-\x1f\x{85}\pZ]*` // Python's

var (
	opening = regexp.MustCompile(`\{[{%#]([-+]?)`)
	rawTag  = regexp.MustCompile(`^\{%[-+]?` + space + `raw` + space + `(?:-%\}` + space + `|%\})`)
	rawEnd  = regexp.MustCompile(`\{%([-+]?)` + space + `endraw` + space + `(?:\+%\}|-%\}` + space + `|%\}\n?)`)
	note    = regexp.MustCompile(`\+#\}|-#\}` + space + `|#\}\n?`)
	blanks  = regexp.MustCompile(`^` + space)
	closing = map[string]*regexp.Regexp{
		"{{": regexp.MustCompile(`^(?:-\}\}` + space + `|\}\})`),
		"{%": regexp.MustCompile(`^(?:\+%\}|-%\}` + space + `|%\}\n?)`),
	}
	tokens = regexp.MustCompile(`(?s)^(?:` +
		`((?:\d+_)*\d+(?:\.(?:\d+_)*\d+)?[eE][-+]?(?:\d+_)*\d+|(?:\d+_)*\d+\.(?:\d+_)*\d+|` +
		`0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|[1-9](?:_?\d)*|0(?:_?0)*)|` +
		`(is\s+not\b|not\s+in\b|==|!=|<=|>=|\*\*|//|[-+*/%~\[\](){}<>=.:|,])|` +
		`([\pL_][\pL\pM\pN_]*)|` +
		`('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))`)
	escape   = regexp.MustCompile(`(?s)\\(?:x..|u.{4}|U.{8}|[0-7]{1,3}|.)`)
	newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")
)

// lex cuts a template into tokens and removes the white space that signs, trim_blocks and lstrip_blocks remove.
func (p *parser) lex() {
	for p.at < len(p.source) {
		rest := p.source[p.at:]
		m := opening.FindStringSubmatchIndex(rest)
		if m == nil {
			p.text(len(rest), "{{", "")
			break
		}
		open := rest[m[0] : m[0]+2]
		p.text(m[0], open, rest[m[2]:m[3]])
		rest = rest[m[0]:]
		switch raw := rawTag.FindString(rest); {
		case raw != "":
			p.at += len(raw)
			rest = rest[len(raw):]
			end := rawEnd.FindStringSubmatchIndex(rest)
			check(end != nil, "TemplateSyntaxError: missing end of raw directive")
			p.text(end[0], "{%", rest[end[2]:end[3]])
			p.at += end[1] - end[0]
		case open == "{#":
			end := note.FindStringIndex(rest[2:])
			check(end != nil, "TemplateSyntaxError: missing end of comment tag")
			p.at += 2 + end[1]
		default:
			p.emit(sign, open, m[1]-m[0])
			p.tag(open)
		}
	}
	p.emit(endOfFile, "end of template", 0)
	p.at = 0
}

// emit adds a token that takes n bytes of the source.
func (p *parser) emit(k kind, text string, n int) {
	p.tokens = append(p.tokens, token{k, text, p.at})
	check(len(p.tokens) <= maxTokens, "a template of more than %d tokens", maxTokens)
	p.at += n
}

// text emits the next n bytes, less the white space that a tag with this opening and sign takes away before it.
func (p *parser) text(n int, open, sign string) {
	text := p.source[p.at : p.at+n]
	line := strings.LastIndexByte(text, '\n') + 1
	startsLine := line > 0 || p.at == 0 || p.source[p.at-1] == '\n'
	if sign == "-" {
		text = strings.TrimRightFunc(text, isSpace)
	} else if sign == "" && open != "{{" && startsLine && strings.TrimFunc(text[line:], isSpace) == "" {
		text = text[:line]
	}
	if text != "" {
		p.emit(data, text, 0)
	}
	p.at += n
}

// tag emits the tokens of a tag up to its end.
func (p *parser) tag(open string) {
	for depth := 0; ; {
		p.at += len(blanks.FindString(p.source[p.at:]))
		rest := p.source[p.at:]
		if end := closing[open].FindString(rest); end != "" && depth == 0 {
			p.emit(sign, map[string]string{"{{": "}}", "{%": "%}"}[open], len(end))
			return
		}
		m := tokens.FindStringSubmatch(rest)
		check(m != nil, "TemplateSyntaxError: unexpected char or end of the template in a tag: %.10q", rest)
		k := number
		for m[k] == "" {
			k++
		}
		text := m[k]
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
		p.emit(k, text, len(m[0]))
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
