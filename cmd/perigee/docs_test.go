package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestDocumentsNameCommandsAndFlagsThatExist reads every command line in the documents,
// and every flag that they name elsewhere.
func TestDocumentsNameCommandsAndFlagsThatExist(t *testing.T) {
	root := (&app{}).rootCommand()
	flags := map[string]bool{"help": true}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)

	var files []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md", "docs/*.yaml"} {
		some, err := filepath.Glob(filepath.Join("..", "..", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, some, pattern)
		files = append(files, some...)
	}
	// A command line ends with its code span or its line.
	line := regexp.MustCompile("\\bperigee ([a-z][^`\n]*)")
	flag := regexp.MustCompile("(?:^|[ `(])--([a-z][a-z-]*)")
	lines, named := 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			lines++
			words := strings.Fields(m[1])
			cmd, _, err := root.Find(words)
			require.NoError(t, err, "%s: %s", file, m[0])
			require.NotEqual(t, root, cmd, "%s: %s is no command", file, m[0])
			if len(cmd.Commands()) > 0 && len(words) > 1 && !strings.HasPrefix(words[1], "-") && !cmd.HasLocalFlags() {
				require.Fail(t, "no such command", "%s: %s", file, m[0])
			}
			for _, f := range flag.FindAllStringSubmatch(m[1], -1) {
				known := cmd.Flags().Lookup(f[1]) != nil || cmd.InheritedFlags().Lookup(f[1]) != nil
				require.True(t, known, "%s: %s: there is no --%s", file, m[0], f[1])
			}
		}
		for _, f := range flag.FindAllStringSubmatch(string(text), -1) {
			named++
			require.True(t, flags[f[1]], "%s: there is no --%s", file, f[1])
		}
	}
	require.Greater(t, lines, 25)
	require.Greater(t, named, 30)
}
