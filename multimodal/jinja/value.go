package jinja

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
)

// A value is nil, bool, int, float64, string, *loop, *function or one of these.
type (
	undefined string // the error that its use raises
	long      string // the digits of an integer of more than 64 bits
	markup    string // text that was escaped or is safe: it can be shown, and little else
	seq       struct {
		kind  string // Python's type: list, tuple, range, generator (can be read once), dict_keys, dict_values or dict_items
		items []any
	}
	dict struct { // in the order of its keys
		keys   []any
		values map[any]any // by key(k)
	}
	namespace struct{ dict }
)

var typeNames = map[reflect.Type]string{
	nil: "NoneType", reflect.TypeFor[bool](): "bool", reflect.TypeFor[int](): "int", reflect.TypeFor[long](): "int",
	reflect.TypeFor[float64](): "float", reflect.TypeFor[string](): "str", reflect.TypeFor[markup](): "Markup",
	reflect.TypeFor[*dict](): "dict", reflect.TypeFor[*namespace](): "Namespace", reflect.TypeFor[*loop](): "LoopContext",
	reflect.TypeFor[*function](): "function", reflect.TypeFor[undefined](): "Undefined",
}

// typeName is Python's name of a value's type.
func typeName(v any) string {
	if s, ok := v.(*seq); ok {
		return s.kind
	}
	return typeNames[reflect.TypeOf(v)]
}

// plain is v, which is a string if it is marked text.
func plain(v any) any {
	if m, ok := v.(markup); ok {
		return string(m)
	}
	return v
}

// list is a list of copies.
func list[T any](parts []T) *seq {
	items := make([]any, len(parts))
	for i, p := range parts {
		items[i] = p
	}
	return &seq{kind: "list", items: items}
}

func tuple(items ...any) *seq       { return &seq{kind: "tuple", items: items} }
func generator(items []any) *seq    { return &seq{kind: "generator", items: items} }
func entry(pair any) (key, val any) { return pair.(*seq).items[0], pair.(*seq).items[1] }

// key is the Go value that stands for k among a dict's keys: equal numbers are one.
func key(k any) any {
	_, isSeq := k.(*seq)
	check(!isSeq && typeName(k) != "dict", "TypeError: unhashable or unsupported as a key: '%s'", typeName(k))
	if f, ok := k.(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1e18 {
		return int(f)
	} else if i, ok := integer(k); ok {
		return i
	}
	return plain(k)
}

func (d *dict) put(r *run, k, v any) {
	if d.values == nil {
		d.values = map[any]any{}
	}
	at := key(k)
	if _, ok := d.values[at]; !ok {
		r.spend(4 * perValue)
		d.keys = append(d.keys, k)
	}
	d.values[at] = v
}

func (d *dict) get(k any) (any, bool) {
	v, ok := d.values[key(k)]
	return v, ok
}

func (d *dict) items() []any {
	items := make([]any, len(d.keys))
	for i, k := range d.keys {
		items[i] = tuple(k, d.values[key(k)])
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
	text, err := json.Marshal(v)
	check(err == nil, "TypeError: a variable of Go type %T is no JSON: %v", v, err)
	r.work = max(r.work-maxReads*len(text), -maxMore)
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return r.decode(dec)
}

// decode reads one JSON value, objects in the order of their keys. The text is well-formed: json.Marshal gave it.
func (r *run) decode(dec *json.Decoder) any {
	defer r.deeper()()
	token, _ := dec.Token()
	switch t := token.(type) {
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
		if _, _ = dec.Token(); t == '{' {
			return d
		}
		return list(items)
	}
	return token
}

// size is what making a value counts for.
func size(v any) int {
	if s, ok := v.(*seq); ok {
		return perValue * len(s.items)
	}
	s, _ := plain(v).(string)
	return len(s)
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
	return v != nil && v != false && v != "" && v != 0 && v != 0.0 && v != markup("")
}

// iterate returns the elements that a for loop visits.
func (r *run) iterate(v any) []any {
	switch v := v.(type) {
	case string:
		r.spend(8 * len(v))
		return list(strings.Split(v, "")).items
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

// mustExist is for values that something is done with: not for undefined ones, and not for escaped text, which would escape
// what it meets.
func mustExist(values ...any) {
	for _, v := range values {
		missing, isMissing := v.(undefined)
		check(!isMissing, "%s", string(missing))
		check(typeName(v) != "Markup", "this is not supported for text that is escaped or safe")
	}
}

// as is a value that must have a type.
func as[T string | *dict | *namespace | *function](v any) T {
	mustExist(v)
	t, ok := v.(T)
	check(ok, "TypeError: '%s' object is no '%s'", typeName(v), typeName(t))
	return t
}
