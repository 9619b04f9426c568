package jinja

import (
	"bytes"
	"encoding/json"
	"io"
	"iter"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// A value is nil, bool, int64, *big.Int (beyond int64), float64, string, []any (a list), or one of these.
type (
	tuple     []any
	undefined string // the error that its use raises
	dict      struct {
		keys, values []any
		at           map[any]int
	}
	iterator struct { // dict_keys, dict_values, dict_items, range or generator; the last can be read once
		kind, repr string
		items      []any
		used       bool
	}
	namespace struct{ dict }
)

func newDict() *dict { return &dict{at: map[any]int{}} }

type hashed string // a key that is no map key in Go

// hash maps keys that Python holds for equal (1, 1.0, true) to one Go value.
func (r *run) hash(k any) any {
	switch k := k.(type) {
	case bool, *big.Int, int64:
		i, _ := asInt(k)
		if i.IsInt64() {
			return i.Int64()
		}
		return hashed(i.String())
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return int64(k)
		}
	case tuple:
		for _, v := range k {
			r.hash(v)
		}
		return hashed(r.repr(k))
	case []any, *dict:
		fail("TypeError: unhashable type: '%s'", typeName(k))
	}
	return k
}

// put sets a key. r is nil for variables, which are not charged.
func (d *dict) put(r *run, k, v any) {
	h := r.hash(k)
	if i, ok := d.at[h]; ok {
		d.values[i] = v
		return
	}
	if r != nil {
		r.made(200)
	}
	d.at[h] = len(d.keys)
	d.keys, d.values = append(d.keys, k), append(d.values, v)
}

func (d *dict) get(r *run, k any) (any, bool) {
	i, ok := d.at[r.hash(k)]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

func (d *dict) has(r *run, k any) bool {
	_, ok := d.get(r, k)
	return ok
}

// all walks through the pairs; nil has none.
func (d *dict) all() iter.Seq2[any, any] {
	return func(yield func(any, any) bool) {
		if d == nil {
			return
		}
		for i, k := range d.keys {
			if !yield(k, d.values[i]) {
				return
			}
		}
	}
}

func (d *dict) items() []any {
	list := make([]any, len(d.keys))
	for i, k := range d.keys {
		list[i] = tuple{k, d.values[i]}
	}
	return list
}

// convert makes a value of a variable that Render was given.
func convert(v any, depth int) any {
	if depth > maxDepth {
		fail("RecursionError: variables are nested deeper than %d", maxDepth)
	}
	switch v := v.(type) {
	case nil, bool, string, int64, float64:
		return v
	case int:
		return int64(v)
	case int32:
		return int64(v)
	case float32:
		return float64(v)
	case []string:
		list := make([]any, len(v))
		for i, s := range v {
			list[i] = s
		}
		return list
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = convert(e, depth+1)
		}
		return list
	case map[string]any:
		d := newDict()
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			d.put(nil, k, convert(v[k], depth+1))
		}
		return d
	case json.RawMessage:
		dec := json.NewDecoder(bytes.NewReader(v))
		dec.UseNumber()
		value := decode(dec, depth)
		if _, err := dec.Token(); err != io.EOF {
			fail("ValueError: text after a JSON variable")
		}
		return value
	}
	fail("TypeError: variables of Go type %T are not supported", v)
	return nil
}

// decode reads one JSON value, objects in the order of their keys.
func decode(dec *json.Decoder, depth int) any {
	t, err := dec.Token()
	if err != nil || depth > maxDepth {
		fail("ValueError: a JSON variable is malformed or too deep: %v", err)
	}
	switch t := t.(type) {
	case json.Number:
		if strings.ContainsAny(string(t), ".eE") {
			f, _ := t.Float64() // beyond the range: infinity, as in Python
			return f
		}
		return parseInt(string(t), 10)
	case json.Delim:
		if t == '[' {
			list := []any{}
			for dec.More() {
				list = append(list, decode(dec, depth+1))
			}
			return closed(dec, list)
		}
		d := newDict()
		for dec.More() {
			k := decode(dec, depth+1)
			d.put(nil, k, decode(dec, depth+1))
		}
		return closed(dec, d)
	}
	return t
}

// closed reads the bracket behind v.
func closed(dec *json.Decoder, v any) any {
	if _, err := dec.Token(); err != nil {
		fail("ValueError: a JSON variable is malformed: %v", err)
	}
	return v
}

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []any:
		return "list"
	case tuple:
		return "tuple"
	case *dict:
		return "dict"
	case undefined:
		return "Undefined"
	case *iterator:
		return v.kind
	case *namespace:
		return "Namespace"
	case *loop:
		return "LoopContext"
	case *macro:
		return "Macro"
	}
	return "builtin_function_or_method"
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case tuple:
		return len(v) > 0
	case *dict:
		return len(v.keys) > 0
	case *iterator:
		return v.kind == "generator" || len(v.items) > 0
	}
	return true
}

// iterate returns the elements that a for loop visits.
func (r *run) iterate(v any) []any {
	switch v := v.(type) {
	case string:
		list := make([]any, 0, utf8.RuneCountInString(v))
		r.made(perElement * cap(list))
		for _, c := range v {
			list = append(list, string(c))
		}
		return list
	case []any:
		return v
	case tuple:
		return v
	case *dict:
		return v.keys
	case *iterator:
		if v.used {
			return nil
		}
		v.used = v.kind == "generator"
		return v.items
	case *loop:
		rest := v.items[min(v.i+1, len(v.items)):]
		v.i = len(v.items)
		return rest
	case undefined:
		return nil
	}
	fail("TypeError: '%s' object is not iterable", typeName(v))
	return nil
}

// length is Python's len; ok is false for what has none.
func (r *run) length(v any) (n int, ok bool) {
	switch v := v.(type) {
	case string:
		r.step(len(v) / 32)
		return utf8.RuneCountInString(v), true
	case []any:
		return len(v), true
	case tuple:
		return len(v), true
	case *dict:
		return len(v.keys), true
	case *iterator:
		return len(v.items), v.kind != "generator"
	case *loop:
		return len(v.items), true
	case undefined:
		return 0, true
	}
	return 0, false
}
