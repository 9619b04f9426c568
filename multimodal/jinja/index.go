package jinja

import (
	"strings"
	"unicode/utf8"
)

// item is v[key]; ok is false where Python raises an error that templates see as undefined.
func (r *run) item(v, key any) (any, bool) {
	switch v := v.(type) {
	case *dict:
		return v.get(r, key)
	case string:
		i, ok := key.(int64)
		if !ok {
			return nil, false
		}
		r.step(len(v) / 8)
		if n := int64(utf8.RuneCountInString(v)); i < 0 {
			i += n
		}
		for _, c := range v {
			if i == 0 {
				return string(c), true
			}
			i--
		}
		return nil, false
	case []any:
		return element(v, key)
	case tuple:
		return element(v, key)
	case *iterator:
		if v.kind == "range" {
			return element(v.items, key)
		}
	}
	return nil, false
}

func element(list []any, key any) (any, bool) {
	k, ok := asInt(key)
	if !ok || !k.IsInt64() {
		return nil, false
	}
	i := k.Int64()
	if i < 0 {
		i += int64(len(list))
	}
	if i < 0 || i >= int64(len(list)) {
		return nil, false
	}
	return list[i], true
}

// slice is v[from:to:by]; bounds are int64 or nil.
func (r *run) slice(v any, from, to, by any) any {
	mustExist(v)
	step, ok := by.(int64)
	if step == 0 && (ok || by != nil) {
		fail("ValueError: slice step must be a whole number other than zero")
	} else if step == 0 {
		step = 1
	}
	var list []any
	switch v := v.(type) {
	case string:
		list = r.iterate(v)
	case []any:
		list = v
	case tuple:
		list = v
	default:
		fail("TypeError: '%s' object is not subscriptable", typeName(v))
	}
	n := int64(len(list))
	low, high := int64(0), n
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(v any, standard int64) int64 {
		if v == nil {
			return standard
		}
		i, ok := v.(int64)
		if !ok {
			fail("TypeError: slice indices must be integers or None")
		}
		if i < 0 {
			i += n
		}
		return min(max(i, low), high)
	}
	start, stop := bound(from, low), bound(to, high)
	if step < 0 {
		start, stop = bound(from, high), bound(to, low)
	}
	part := []any{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		part = append(part, list[i])
		if step > n || step < -n {
			break
		}
	}
	r.made(perElement * len(part))
	switch v.(type) {
	case string:
		var b strings.Builder
		for _, c := range part {
			b.WriteString(c.(string))
		}
		return b.String()
	case tuple:
		return tuple(part)
	}
	return part
}
