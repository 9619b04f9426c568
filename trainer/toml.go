package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// DecodeTOML reads the file at path into v, a pointer to a struct with toml tags that already holds the defaults, and
// then applies sets, each "table.key=value", in order: the last one wins. Values of sets are TOML; what is not TOML, or
// goes to a string, is taken as it stands. Keys that v lacks, also those that differ in case only, are errors with their
// line and the nearest key of v; so are wrong types, duplicates and bad syntax. On an error v may be partly filled.
func DecodeTOML(path string, sets []string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if err := decodeStrict(string(text), v, func(line int) string { return fmt.Sprintf("%s:%d", path, line) }); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	for _, set := range sets {
		if err := decodeSet(set, v); err != nil {
			return fmt.Errorf("config: %w", err)
		}
	}
	return nil
}

func decodeSet(set string, v any) error {
	key, value, ok := strings.Cut(set, "=")
	if key = strings.TrimSpace(key); !ok || key == "" {
		return fmt.Errorf("-set %q: want table.key=value", set)
	}
	t, parts := reflect.TypeOf(v), toml.Key(strings.Split(key, "."))
	field, n := find(t, parts)
	if n < len(parts) {
		return fmt.Errorf("-set %q: %w", set, unknownKey(parts[:n+1].String(), t))
	}
	return decodeStrict(key+" = "+setValue(value, field), v, func(int) string { return fmt.Sprintf("-set %q", set) })
}

// setValue returns the value of a -set as TOML.
func setValue(value string, field reflect.Type) string {
	value = strings.TrimSpace(value)
	var probe map[string]any
	_, err := toml.Decode("v = "+value, &probe)
	bare := field.Kind() == reflect.String && !strings.HasPrefix(value, `"`) && !strings.HasPrefix(value, "'")
	if err == nil && len(probe) == 1 && !bare { // more than one key: a line break in the value
		return value
	}
	quoted, _ := json.Marshal(value) // every JSON string is a TOML string; strings always marshal
	return string(quoted)
}

// decodeStrict decodes text into v after checking every key; at names a place by its line.
func decodeStrict(text string, v any, at func(line int) string) error {
	var doc map[string]toml.Primitive
	md, err := toml.Decode(text, &doc)
	if err != nil {
		return placed(err, at)
	}
	var unknown []error
	t, reported := reflect.TypeOf(v), map[string]bool{} // what is below an unknown table is not reported again
	for _, key := range md.Keys() {
		field, n := find(t, key)
		if n == len(key) {
			if kind, want := shape(field); kind != "" && kind != md.Type(key...) { // the decoder takes 3 for an empty table
				return fmt.Errorf("%s: %s: want %s", at(lineOf(md, doc, key)), key, want)
			}
			continue
		}
		if reported[key[:n+1].String()] {
			continue
		}
		key = key[:n+1]
		reported[key.String()] = true
		unknown = append(unknown, fmt.Errorf("%s: %w", at(lineOf(md, doc, key)), unknownKey(key.String(), t)))
	}
	if unknown != nil {
		return errors.Join(unknown...)
	}
	if _, err := toml.Decode(text, v); err != nil {
		return placed(err, at)
	}
	return nil
}

// shape is the TOML type of lists and of tables with free keys where t is one, and how to write it.
func shape(t reflect.Type) (kind, want string) {
	switch t.Kind() {
	case reflect.Slice:
		return "Array", `a list, as ["one", "two"]`
	case reflect.Map:
		return "Hash", "a table, as {key = value}"
	}
	return "", ""
}

var plain = strings.NewReplacer("incompatible types: TOML value has type ", "it is of type ", "; destination has type ", ", want ")

// placed turns the decoder's "toml: line 3 (last key …): …" into "file:3: …".
func placed(err error, at func(int) string) error {
	text, line := plain.Replace(err.Error()), 0
	if _, scanErr := fmt.Sscanf(text, "toml: line %d", &line); scanErr != nil {
		return err
	}
	text = strings.TrimPrefix(text, fmt.Sprintf("toml: line %d", line))
	return fmt.Errorf("%s: %s", at(line), strings.TrimPrefix(strings.TrimSpace(text), ": "))
}

// locator refuses every value, so that the decoder's error tells where the value stands.
type locator struct{}

func (*locator) UnmarshalTOML(any) error { return errors.New("located") }

// lineOf returns the line of key, 0 if the decoder does not tell: it knows the places but hides them from its callers.
func lineOf(md toml.MetaData, doc map[string]toml.Primitive, key toml.Key) int {
	value := doc[key[0]]
	for _, name := range key[1:] {
		var table map[string]toml.Primitive
		if err := md.PrimitiveDecode(value, &table); err != nil {
			return 0
		}
		value = table[name]
	}
	var place toml.ParseError
	errors.As(md.PrimitiveDecode(value, &locator{}), &place)
	return place.Position.Line
}

// find returns the type that key, one part per table, has in t, and how many of its parts t knows, from the front. Below a
// scalar everything is accepted: the decoder reports the wrong type. Keys of a map are free.
func find(t reflect.Type, key toml.Key) (field reflect.Type, known int) {
	for n := 0; ; n++ {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && n < len(key) {
			t = t.Elem()
		}
		switch {
		case n == len(key):
			return t, n
		case t.Kind() == reflect.Struct:
			field, ok := tomlFields(t)[key[n]]
			if !ok {
				return nil, n
			}
			t = field
		case t.Kind() == reflect.Map:
			t = t.Elem()
		default:
			return t, len(key)
		}
	}
}

// tomlFields returns the keys of struct t and their types; those of an embedded struct without a tag count as t's own.
func tomlFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct:
			maps.Copy(fields, tomlFields(f.Type))
		case name == "":
			fields[f.Name] = f.Type
		default:
			fields[name] = f.Type
		}
	}
	return fields
}

// unknownKey says that t lacks key and names the nearest key that it has: by the whole key, or, as a weaker match, by its
// last part alone, for a key that stands in the wrong table.
func unknownKey(key string, t reflect.Type) error {
	leaf := func(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
	table := func(key string) string { return key[:strings.LastIndexByte(key, '.')+1] }
	const wrongTable = 2 // a slip of two letters in the right table is nearer than one in another
	best, least, lower := "", 0, strings.ToLower(key)
	for _, known := range knownKeys(t, "") {
		d := EditDistance(leaf(lower), leaf(known))
		if d > 0 {
			d = min(EditDistance(lower, known), d+wrongTable)
		}
		if table(lower) != table(known) {
			d++
		}
		if best == "" || d < least {
			best, least = known, d
		}
	}
	return fmt.Errorf("unknown key %q; the nearest known key is %q", key, best)
}

// knownKeys lists the keys of t and of the tables in it, in a fixed order.
func knownKeys(t reflect.Type, prefix string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	fields := tomlFields(t)
	var keys []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		keys = append(keys, prefix+name)
		keys = append(keys, knownKeys(fields[name], prefix+name+".")...)
	}
	return keys
}

// EditDistance is the least number of insertions, deletions and replacements of bytes that turn a into b (Levenshtein).
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] to every b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
