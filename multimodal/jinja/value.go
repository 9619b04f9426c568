package jinja

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"unicode/utf8"
)

// A value is nil, bool, int64, float64, string, *loop or one of these.
type (
	undefined string // the error that its use raises
	bigInt    string // the digits of an integer beyond 64 bits: it can be shown and tested for equality
	seq       struct {
		kind  string // Python's type: list, tuple, range, generator (can be read once), dict_keys, dict_values or dict_items
		items []any
		repr  string // where it does not show the items
	}
	dict struct {
		keys, values []any
		at           map[any]int
	}
	namespace struct{ dict }
	function  struct {
		repr string
		call func(pos []any, named *dict) any
	}
)

func list(items []any) *seq   { return &seq{kind: "list", items: items} }
func tuple(items ...any) *seq { return &seq{kind: "tuple", items: items} }
func generator(items []any) any {
	return &seq{kind: "generator", items: items, repr: "<generator object at 0x0>"}
}

// texts is a list of strings.
func texts(parts []string) *seq {
	items := make([]any, len(parts))
	for i, p := range parts {
		items[i] = p
	}
	return list(items)
}

// key is k as a key of a Go map. Unlike in Python 1, 1.0 and true are three keys, and a tuple is none.
func key(k any) any {
	kind := typeName(k)
	check(kind != "list" && kind != "dict" && kind != "tuple", "TypeError: unhashable type: '%s'", kind)
	return k
}

func (d *dict) put(r *run, k, v any) {
	if i, ok := d.at[key(k)]; ok {
		d.values[i] = v
		return
	}
	if r.made(200); d.at == nil {
		d.at = map[any]int{}
	}
	d.at[k] = len(d.keys)
	d.keys, d.values = append(d.keys, k), append(d.values, v)
}

func (d *dict) get(k any) (any, bool) {
	i, ok := d.at[key(k)]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

func (d *dict) items() []any {
	items := make([]any, len(d.keys))
	for i, k := range d.keys {
		items[i] = tuple(k, d.values[i])
	}
	return items
}

// update adds what Python's dict() takes: a mapping or pairs.
func (d *dict) update(r *run, v any) {
	if from, ok := v.(*dict); ok {
		v = list(from.items())
	}
	for _, pair := range r.iterate(v) {
		kv := r.iterate(pair)
		check(len(kv) == 2, "ValueError: dictionary update sequence element has length %d; 2 is required", len(kv))
		d.put(r, kv[0], kv[1])
	}
}

// convert makes a value of a variable that Render was given.
func (r *run) convert(v any) any {
	switch v := v.(type) {
	case nil, bool, string, int64, float64:
		return v
	case int:
		return int64(v)
	case []any, map[string]any:
		text, err := json.Marshal(v)
		check(err == nil, "TypeError: a variable is no JSON: %v", err)
		return r.convert(json.RawMessage(text))
	case json.RawMessage:
		dec := json.NewDecoder(bytes.NewReader(v))
		dec.UseNumber()
		value := r.decode(dec)
		_, err := dec.Token()
		check(err == io.EOF, "ValueError: text after a JSON variable")
		return value
	}
	return fail("TypeError: variables of Go type %T are not supported", v)
}

// decode reads one JSON value, objects in the order of their keys.
func (r *run) decode(dec *json.Decoder) any {
	defer r.deeper()()
	token := func() json.Token {
		t, err := dec.Token()
		check(err == nil, "ValueError: a JSON variable is malformed: %v", err)
		return t
	}
	switch t := token().(type) {
	case json.Number:
		return parseNumber(string(t))
	case json.Delim:
		d, items := &dict{}, []any{}
		for dec.More() {
			v := r.decode(dec)
			if t == '{' {
				d.put(r, v, r.decode(dec))
			}
			items = append(items, v)
		}
		if token(); t == '{' {
			return d
		}
		return list(items)
	default:
		return t
	}
}

var typeNames = map[reflect.Type]string{
	nil: "NoneType", reflect.TypeFor[bool](): "bool", reflect.TypeFor[int64](): "int", reflect.TypeFor[bigInt](): "int",
	reflect.TypeFor[float64](): "float", reflect.TypeFor[string](): "str", reflect.TypeFor[*dict](): "dict",
	reflect.TypeFor[*namespace](): "Namespace", reflect.TypeFor[*loop](): "LoopContext",
	reflect.TypeFor[*function](): "function", reflect.TypeFor[undefined](): "Undefined",
}

// typeName is Python's name of a value's type.
func typeName(v any) string {
	if s, ok := v.(*seq); ok {
		return s.kind
	}
	return typeNames[reflect.TypeOf(v)]
}

func truth(v any) bool {
	switch v := v.(type) {
	case undefined:
		return false
	case *seq:
		return v.kind == "generator" || len(v.items) > 0
	case *dict:
		return len(v.keys) > 0
	}
	return v != nil && v != false && v != "" && v != int64(0) && v != 0.0
}

// iterate returns the elements that a for loop visits.
func (r *run) iterate(v any) []any {
	switch v := v.(type) {
	case string:
		r.step(len(v) / 4)
		items := make([]any, 0, utf8.RuneCountInString(v))
		for _, c := range v {
			items = append(items, string(c))
		}
		return items
	case *seq:
		items := v.items
		if v.kind == "generator" {
			v.items = nil
		}
		return items
	case *dict:
		return v.keys
	case undefined:
		return nil
	}
	fail("TypeError: '%s' object is not iterable", typeName(v))
	return nil
}

func missing(v any) bool {
	_, ok := v.(undefined)
	return ok
}

func mustExist(values ...any) {
	for _, v := range values {
		if u, ok := v.(undefined); ok {
			fail("%s", string(u))
		}
	}
}
