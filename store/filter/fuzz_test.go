package filter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// FuzzFilter gives any text to the compiler and to the reference: both take it or
// neither does, and what they take they judge alike.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{
		"a > 5 AND b IN ('x','y')", "NOT a = 1 OR b IS NOT NULL", "a BETWEEN -1 AND 2.5e3", "a NOT CONTAINS 'it''s'", "TRUE = a -- x",
		"(a = 1) = (b <> 2L)", "a NOT BETWEEN b AND 5", "/* x */ TAGS STARTSWITH 'r'", "((a)) < .5", "a = 0.0", "- - 5 = a", "a = 'x", "a IN ()",
		"NOT NOT TRUE", "a IS NULL IS NULL", "a < 1 < 2", "9223372036854775808 > a", "-9223372036854775808 < a", "a = 05", "e>=1e3",
	} {
		f.Add(seed, "5", "x")
	}
	f.Fuzz(func(t *testing.T, expression, a, b string) {
		compareWithReference(t, expression, map[string]string{"a": a, "b": b, nameTags: "red"})
	})
}

type failer interface {
	require.TestingT
	Helper()
}

func compareWithReference(t failer, expression string, properties map[string]string) {
	t.Helper()
	f, err := Compile(expression)
	if len(expression) > MaxLength || strings.Count(expression, "(") > MaxDepth || strings.Count(expression, "NOT")+strings.Count(expression, "not") > 1000 {
		return // beyond limits that the reference does not have
	}
	reference, ok := refCompile(expression)
	if strings.ToValidUTF8(expression, "") != expression || strings.TrimSpace(expression) == "" {
		ok = false
	}
	if !ok {
		require.Error(t, err, "only the reference refuses %q", expression)
		return
	}
	require.NoError(t, err, "only the reference takes %q", expression)
	want := reference(properties)
	require.Equal(t, want, f.Matches(stored(properties)), "%q, with %v", expression, properties)
}

// expressions draws expressions with few mistakes in them.
type expressions struct{ t *rapid.T }

func (e expressions) one(of ...string) string { return rapid.SampledFrom(of).Draw(e.t, "choice") }

func (e expressions) name() string { return e.one("a", "b", "c", "d", "m", "TAGS") }

func (e expressions) text() string {
	return e.one("'x'", "''", "'5'", "'it''s'", "'true'", "'xy'", "'日本'")
}

func (e expressions) number() string {
	return e.one("0", "5", "-1", "5L", "5.5", "0.0", "1e2", ".5", "- -7", "9223372036854775807", "-9223372036854775808", "+3")
}

func (e expressions) operand(depth int) string {
	switch rapid.IntRange(0, 9).Draw(e.t, "operand") {
	case 0:
		return e.text()
	case 1:
		return e.one("TRUE", "false")
	case 2, 3, 4:
		return e.number()
	case 5:
		if depth > 0 {
			return "(" + e.or(depth-1) + ")"
		}
	}
	return e.name()
}

func (e expressions) condition(depth int) string {
	negated := e.one("", "", "NOT ")
	switch rapid.IntRange(0, 8).Draw(e.t, "condition") {
	case 0:
		return e.operand(depth) + e.one(" < ", "<=", " > ", ">= ") + e.operand(depth)
	case 1, 2:
		return e.operand(depth) + e.one(" = ", "<>") + e.operand(depth)
	case 3:
		return e.operand(depth) + " IS " + negated + "NULL"
	case 4:
		return fmt.Sprint(e.name(), " ", negated, "BETWEEN ", e.operand(0), " AND ", e.operand(0))
	case 5:
		return fmt.Sprint(e.name(), " ", negated, "in (", e.text(), ",", e.text(), ")")
	case 6:
		return fmt.Sprint(e.name(), " ", negated, e.one("CONTAINS ", "StartsWith ", "ENDSWITH "), e.text())
	case 7:
		return "(" + e.or(max(depth-1, 0)) + ")"
	}
	return e.name() + e.one(" > ", "<") + e.number()
}

func (e expressions) or(depth int) string {
	var b strings.Builder
	for i := range rapid.IntRange(1, 1+depth).Draw(e.t, "terms") {
		if i > 0 {
			b.WriteString(e.one(" OR ", " AND ", " and/* x */", "\nOR -- y\n"))
		}
		b.WriteString(e.one("", "", "NOT "))
		b.WriteString(e.condition(depth))
	}
	return b.String()
}

func TestExpressionsMeanWhatTheReferenceSays(t *testing.T) {
	valid := 0
	rapid.Check(t, func(t *rapid.T) {
		e := expressions{t}
		expression := e.or(3)
		if _, err := Compile(expression); err == nil {
			valid++
		}
		value := rapid.SampledFrom([]string{"", "x", "xy", "5", "-1", "5.5", "05", "true", "TRUE", "it's", "日本", "1e2", "9223372036854775807", "1e999", "nan"})
		for range 4 {
			properties := map[string]string{nameTags: rapid.SampledFrom([]string{"x", "5", "true"}).Draw(t, "tag")}
			for _, name := range []string{"a", "b", "c", "d"} {
				if rapid.IntRange(0, 4).Draw(t, "missing") > 0 {
					properties[name] = value.Draw(t, name)
				}
			}
			compareWithReference(t, expression, properties)
		}
	})
	require.Positive(t, valid)
}
