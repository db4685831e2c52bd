package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
)

// An entryKey is one key of the entries of a list, and its place in a T.
type entryKey[T any] struct {
	name  string
	field func(*T) *string
}

var listenerKeys = []entryKey[Listener]{
	{"listen", func(l *Listener) *string { return &l.Listen }},
	{"advertise", func(l *Listener) *string { return &l.Advertise }},
	{"proxy_protocol", func(l *Listener) *string { return &l.ProxyProtocol }},
}

var certificateKeys = []entryKey[Certificate]{
	{"cert_file", func(c *Certificate) *string { return &c.CertFile }},
	{"key_file", func(c *Certificate) *string { return &c.KeyFile }},
	{"key_password_file", func(c *Certificate) *string { return &c.KeyPasswordFile }},
}

// listValue is a pflag.Value over a list whose entries have keys. In a file it is
// a list; environment and command line give it as YAML, of which JSON is a part.
type listValue[T any] struct {
	target *[]T
	keys   []entryKey[T]
}

func list[T any](target *[]T, keys []entryKey[T]) listValue[T] { return listValue[T]{target, keys} }

// String returns the list as Set takes it.
func (v listValue[T]) String() string {
	if v.target == nil || len(*v.target) == 0 { // pflag asks a zero value for its text
		return ""
	}
	entries := make([]map[string]string, len(*v.target))
	for i := range *v.target {
		entries[i] = map[string]string{}
		for _, key := range v.keys {
			if text := *key.field(&(*v.target)[i]); text != "" {
				entries[i][key.name] = text
			}
		}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		panic("BUG: texts have no JSON: " + err.Error())
	}
	return string(text)
}

// Set replaces the list by the one that s describes.
func (v listValue[T]) Set(s string) error {
	parsed, err := yaml.Parser().Unmarshal([]byte("list: " + s))
	if err != nil {
		return fmt.Errorf("must be %s: %w", v.shape(), err)
	}
	switch entries := parsed["list"].(type) {
	case nil:
		return v.setEntries(nil)
	case []any:
		return v.setEntries(entries)
	default:
		return fmt.Errorf("must be %s", v.shape())
	}
}

// Type implements pflag.Value.
func (v listValue[T]) Type() string { return "list" }

// setEntries replaces the list.
func (v listValue[T]) setEntries(entries []any) error {
	var list []T
	for i, given := range entries {
		var entry T
		values, ok := given.(map[string]any)
		if !ok {
			return fmt.Errorf("must be %s; entry %d is not", v.shape(), i)
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			at := slices.IndexFunc(v.keys, func(k entryKey[T]) bool { return k.name == name })
			if at < 0 {
				return fmt.Errorf("must be %s; entry %d has the key %q", v.shape(), i, name)
			}
			switch values[name].(type) {
			case nil, []any, map[string]any:
				return fmt.Errorf("must be %s; the %s of entry %d is not a single value", v.shape(), name, i)
			}
			*v.keys[at].field(&entry) = fmt.Sprint(values[name])
		}
		list = append(list, entry)
	}
	*v.target = list
	return nil
}

func (v listValue[T]) shape() string {
	names := make([]string, len(v.keys))
	for i, key := range v.keys {
		names[i] = key.name
	}
	return "a list of entries with the keys " + strings.Join(names, ", ")
}
