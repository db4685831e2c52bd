package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// EnvPrefix starts the names of the environment variables that are read: a
// file's key in upper case, its dots as underscores, such as
// PERIGEE_FLUSH_MODE for flush.mode. Other variables with the prefix are left
// alone: orchestrators make some up.
const EnvPrefix = "PERIGEE_"

// delimiter separates the parts of a key.
const delimiter = "."

// Sources are what a configuration is put together from. A later field wins
// over an earlier one, and each over Default.
type Sources struct {
	// Tier is that of the process; empty: Standalone. Keys of other tiers in a file or
	// the environment are without effect, so that a deployment may have one file.
	Tier Tier
	// File is a YAML file; empty: none. A key it does not know is an error.
	File string
	// Env is an environment, in the form of os.Environ.
	Env []string
	// Flags are parsed flags that AddFlags has defined; nil: none.
	Flags *pflag.FlagSet
}

// AddFlags defines a flag for each setting of the tier, with its default as default.
func AddFlags(flags *pflag.FlagSet, t Tier) {
	defaults := DefaultOf(t)
	for _, s := range settings(&defaults) {
		if s.flag == "" || s.tiers&t.set() == 0 {
			continue
		}
		f := flags.VarPF(s.value, s.flag, "", s.usage)
		if s.value.Type() == "bool" {
			f.NoOptDefVal = "true"
		}
	}
}

// Load returns the valid configuration that src describes. Errors name the
// source, the key and the value.
func Load(src Sources) (Config, error) {
	c := DefaultOf(cmp.Or(src.Tier, Standalone))
	known := settings(&c)
	if src.File != "" {
		if err := apply(known, src.File, file.Provider(src.File), yaml.Parser()); err != nil {
			return Config{}, err
		}
	}
	if err := apply(known, "environment", environment(known, src.Env), nil); err != nil {
		return Config{}, err
	}
	if src.Flags != nil {
		if err := apply(known, "command line", commandLine(known, src.Flags), nil); err != nil {
			return Config{}, err
		}
	}
	if c.Tracing.Endpoint == "" {
		c.Tracing.Endpoint = standardEndpoint(src.Env)
	}
	c.complete()
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// standardEndpoint returns the collector that the environment names for every
// program: the variables are OpenTelemetry's.
func standardEndpoint(environ []string) string {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		for _, e := range environ {
			if value, ok := strings.CutPrefix(e, name+"="); ok && value != "" {
				return value
			}
		}
	}
	return ""
}

func environment(known []setting, environ []string) koanf.Provider {
	keys := make(map[string]string, len(known))
	for _, s := range known {
		keys[s.variable()] = s.key
	}
	return env.Provider(delimiter, env.Opt{
		Prefix:        EnvPrefix,
		TransformFunc: func(name, value string) (string, any) { return keys[name], value },
		EnvironFunc:   func() []string { return environ },
	})
}

func commandLine(known []setting, flags *pflag.FlagSet) koanf.Provider {
	keys := make(map[string]string, len(known))
	for _, s := range known {
		keys[s.flag] = s.key
	}
	return posflag.ProviderWithFlag(flags, delimiter, nil, func(f *pflag.Flag) (string, any) {
		return keys[f.Name], f.Value.String()
	})
}

// apply sets what provider holds.
func apply(known []setting, source string, provider koanf.Provider, parser koanf.Parser) error {
	k := koanf.New(delimiter)
	if err := k.Load(provider, parser); err != nil {
		return fmt.Errorf("configuration: %s: %w", source, err)
	}
	values := k.All()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if err := set(known, key, values[key]); err != nil {
			return fmt.Errorf("configuration: %s: %w", source, err)
		}
	}
	return nil
}

func set(known []setting, key string, given any) error {
	i := slices.IndexFunc(known, func(s setting) bool { return s.key == key })
	if i < 0 {
		return unknownKey(known, key, given)
	}
	var err error
	entries, several := known[i].value.(interface{ setEntries([]any) error })
	switch given := given.(type) {
	case nil:
		return invalid(key, "", "has no value")
	case []any:
		if !several {
			return invalid(key, given, "must be a single value")
		}
		err = entries.setEntries(given)
	case map[string]any:
		return invalid(key, given, "must be a single value")
	default:
		err = known[i].value.Set(fmt.Sprint(given))
	}
	if err != nil {
		return invalid(key, given, err.Error())
	}
	return nil
}

func unknownKey(known []setting, key string, given any) error {
	var below []string
	for _, s := range known {
		if strings.HasPrefix(s.key, key+delimiter) {
			below = append(below, s.key)
		}
	}
	if len(below) == 0 {
		return fmt.Errorf("unknown key %q", key)
	}
	if m, ok := given.(map[string]any); given == nil || ok && len(m) == 0 {
		return nil // a section in which everything is commented out
	}
	return invalid(key, given, "is a section with the keys "+strings.Join(below, ", "))
}
