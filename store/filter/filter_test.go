package filter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
)

// stored returns the properties as they are stored. The names of the system are written
// into the system properties.
func stored(m map[string]string) (properties, system []byte) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		v := m[name]
		switch name {
		case nameTags, nameKeys, nameID, nameGroup:
			continue
		}
		entry := protowire.AppendString(protowire.AppendTag(nil, fieldKey, protowire.BytesType), name)
		entry = protowire.AppendString(protowire.AppendTag(entry, fieldValue, protowire.BytesType), v)
		properties = protowire.AppendBytes(protowire.AppendTag(properties, fieldProperty, protowire.BytesType), entry)
	}
	add := func(field protowire.Number, texts ...string) {
		for _, text := range texts {
			system = protowire.AppendString(protowire.AppendTag(system, field, protowire.BytesType), text)
		}
	}
	if v, ok := m[nameTags]; ok {
		add(fieldTag, v)
	}
	if v, ok := m[nameKeys]; ok {
		add(fieldKeys, strings.Split(v, " ")...)
	}
	if v, ok := m[nameID]; ok {
		add(fieldID, v)
	}
	system = protowire.AppendVarint(protowire.AppendTag(system, 6, protowire.VarintType), 1) // the type
	system = protowire.AppendBytes(protowire.AppendTag(system, 7, protowire.BytesType), []byte{8, 1})
	if v, ok := m[nameGroup]; ok {
		add(fieldGroup, v)
	}
	return properties, system
}

// The properties that the table is about; m is missing.
var sample = map[string]string{
	"a": "5", "b": "x", "n": "05", "d": "5.5", "e": "1e3", "neg": "-7", "t": "TRUE", "f": "no", "empty": "",
	"big": "9223372036854775807", "huge": "9223372036854775808", "spaced": " 5", "word": "five", "uni": "größe 日本",
	"quote": "it's", "same": "x", "six": "6", "nan": "NaN", "hex": "0x10", "zero": "0", "$p_1": "y", "Case": "upper",
	nameTags: "red", nameKeys: "k1 k2", nameID: "0102", nameGroup: "g-1",
}

func TestWhatExpressionsMean(t *testing.T) {
	for _, c := range []struct {
		expression string
		want       bool
	}{
		// Comparison with numbers: the text of a property is read as the literal's kind.
		{"a = 5", true},
		{"a <> 5", false},
		{"a > 4", true},
		{"a > 5", false},
		{"a >= 5", true},
		{"a < 6", true},
		{"a <= 4", false},
		{"5 = a", true},
		{"4 < a", true},
		{"6 < a", false},
		{"a = 5L", true},
		{"a = 5l", true},
		{"n = 5", true},
		{"neg = -7", true},
		{"neg < 0", true},
		{"neg > -8", true},
		{"a = +5", true},
		{"a = - -5", true},
		{"neg = - + 7", true},
		{"d = 5.5", true},
		{"d > 5.0", true},
		{"a = 5.0", true},
		{"a < 5.1", true},
		{"e = 1000.0", true},
		{"e >= 1e3", true},
		{"a = 5.", true},
		{"zero < .5", true},
		{"zero = 0", true},
		{"zero = 0.0", true},
		{"a > 0.0", true},
		{"neg < -0.0", true},
		{"big = 9223372036854775807", true},
		{"a > -9223372036854775808", true},
		// A text that is no such number is neither equal nor not equal to it.
		{"d = 5", false},
		{"d <> 5", false},
		{"d > 5", false},
		{"NOT d > 5", false},
		{"e > 5", false},
		{"huge > 5", false},
		{"huge > 5.0", true},
		{"spaced = 5", false},
		{"spaced = 5.0", false},
		{"word > 1", false},
		{"word <> 1", false},
		{"nan <> 1.0", false},
		{"nan = 1.0", false},
		{"hex > 1.0", false},
		{"empty = 0", false},
		{"empty <> 0.0", false},
		// It does not spoil what it is joined with.
		{"word > 1 OR b = 'x'", true},
		{"b = 'x' OR word > 1", true},
		{"word > 1 AND b = 'x'", false},
		// Comparison with text.
		{"b = 'x'", true},
		{"b <> 'x'", false},
		{"b = 'X'", false},
		{"'x' = b", true},
		{"a = '5'", true},
		{"n = '5'", false},
		{"empty = ''", true},
		{"quote = 'it''s'", true},
		{"uni = 'größe 日本'", true},
		{"b <> 'y'", true},
		// Between properties.
		{"b = same", true},
		{"b <> same", false},
		{"a = n", false},
		{"a < six", true},
		{"six > a", true},
		{"d < six", true},
		{"b < six", false},
		{"a >= n", true},
		// Something missing is unknown.
		{"m = 5", false},
		{"m <> 5", false},
		{"NOT m = 5", false},
		{"m = 'x'", false},
		{"m <> 'x'", false},
		{"m > 1", false},
		{"m = b", false},
		{"m <> b", false},
		{"m IN ('x')", false},
		{"m NOT IN ('x')", false},
		{"NOT m IN ('x')", false},
		{"m BETWEEN 1 AND 2", false},
		{"m NOT BETWEEN 1 AND 2", false},
		{"m = TRUE", false},
		{"m <> TRUE", false},
		{"m = FALSE", false},
		{"m = m", false},
		// NULL.
		{"m IS NULL", true},
		{"m IS NOT NULL", false},
		{"a IS NULL", false},
		{"a IS NOT NULL", true},
		{"empty IS NULL", false},
		{"NOT m IS NULL", false},
		{"NOT a IS NULL", true},
		{"(m = 5) IS NULL", true},
		{"(a = 5) IS NULL", false},
		{"5 IS NULL", false},
		{"'x' IS NOT NULL", true},
		// IN and BETWEEN.
		{"b IN ('x')", true},
		{"b IN ('y', 'x', 'z')", true},
		{"b NOT IN ('y')", true},
		{"b IN ('y')", false},
		{"b NOT IN ('x','y')", false},
		{"a IN ('5')", true},
		{"quote IN ('it''s')", true},
		{"empty IN ('')", true},
		{"a BETWEEN 5 AND 5", true},
		{"a BETWEEN 1 AND 4", false},
		{"a BETWEEN 5 AND 9", true},
		{"a NOT BETWEEN 1 AND 4", true},
		{"a NOT BETWEEN 1 AND 9", false},
		{"d BETWEEN 5.0 AND 6.0", true},
		{"d BETWEEN 5 AND 6", false},
		{"d NOT BETWEEN 5 AND 6", false},
		{"a BETWEEN -1 AND six", true},
		{"5 BETWEEN zero AND six", true},
		{"a BETWEEN m AND 9", false},
		{"a NOT BETWEEN 6 AND m", true},
		{"a BETWEEN 1 AND 2 OR b = 'x'", true},
		{"a BETWEEN 5 AND 6 AND b = 'x'", true},
		// Parts of texts. What is missing contains nothing, and is not known not to.
		{"uni CONTAINS 'ße'", true},
		{"uni STARTSWITH 'gr'", true},
		{"uni ENDSWITH '日本'", true},
		{"uni CONTAINS 'xx'", false},
		{"uni STARTSWITH 'r'", false},
		{"uni ENDSWITH '日'", false},
		{"uni NOT CONTAINS 'xx'", true},
		{"uni NOT STARTSWITH 'gr'", false},
		{"uni NOT ENDSWITH 'x'", true},
		{"b CONTAINS ''", true},
		{"b STARTSWITH 'xx'", false},
		{"b ENDSWITH 'xx'", false},
		{"m CONTAINS 'x'", false},
		{"m NOT CONTAINS 'x'", false},
		{"m STARTSWITH 'x'", false},
		{"m NOT STARTSWITH 'x'", false},
		{"m NOT ENDSWITH 'x'", false},
		{"NOT m CONTAINS 'x'", true},
		{"a contains '5'", true},
		// Booleans: the text true in any case, and everything else.
		{"t = TRUE", true},
		{"TRUE = t", true},
		{"t <> TRUE", false},
		{"t = FALSE", false},
		{"f = FALSE", true},
		{"FALSE = f", true},
		{"f = TRUE", false},
		{"f <> TRUE", true},
		{"TRUE", true},
		{"FALSE", false},
		{"NOT FALSE", true},
		{"TRUE = TRUE", true},
		{"TRUE <> FALSE", true},
		{"'true' = TRUE", true},
		{"(a = 5) = TRUE", true},
		{"(a = 5) = (b = 'x')", true},
		{"(a = 4) = FALSE", true},
		{"(m = 4) = FALSE", false},
		{"a > 4 = TRUE", true},
		{"t = (a = 5)", true},
		// A property by itself is never true.
		{"t", false},
		{"a", false},
		{"m", false},
		{"NOT t", true},
		{"NOT m", false},
		{"t OR a = 5", true},
		// Constants.
		{"1 = 1", true},
		{"1 = 1.0", true},
		{"1 > 2", false},
		{"'a' = 'a'", true},
		{"'1' = 1", true},
		{"'a' = 1", false},
		{"'a' <> 1", false},
		// NOT, AND, OR with three values, and what binds how.
		{"NOT a = 5", false},
		{"NOT a = 6", true},
		{"NOT NOT a = 5", true},
		{"NOT (a = 6 OR b = 'y')", true},
		{"a = 5 AND m = 1", false},
		{"a = 6 AND m = 1", false},
		{"NOT (a = 6 AND m = 1)", true},
		{"NOT (a = 5 AND m = 1)", false},
		{"a = 5 OR m = 1", true},
		{"a = 6 OR m = 1", false},
		{"NOT (a = 6 OR m = 1)", false},
		{"m = 1 OR m IS NULL", true},
		{"a = 5 OR a = 6 AND b = 'y'", true},
		{"(a = 5 OR a = 6) AND b = 'y'", false},
		{"NOT a = 6 AND b = 'x'", true},
		{"NOT a = 5 OR b = 'x'", true},
		{"NOT (a = 5 OR b = 'x')", false},
		{"a > 4 AND a < 6 AND b = 'x' AND t = TRUE", true},
		// Notation.
		{"a=5 and b='x'", true},
		{"a = 5 Or b iN ('y')", true},
		{"A = 5", false},
		{"case = 'upper'", false},
		{"Case = 'upper'", true},
		{"$p_1 = 'y'", true},
		{"a = 5 -- AND b = 'y'", true},
		{"a /* the first */ = /**/ 5", true},
		{"a = 5 -- x\n AND b = 'x'", true},
		{"\n\ta\r=5 ", true},
		{"(((a))) = (5)", true},
		{"((a = 5))", true},
		{"b = '--'", false},
		{"b <> '/* x */'", true},
		// What the system knows.
		{"TAGS = 'red'", true},
		{"TAGS IN ('red', 'blue')", true},
		{"KEYS = 'k1 k2'", true},
		{"KEYS CONTAINS 'k2'", true},
		{"UNIQ_KEY = '0102'", true},
		{"__SHARDINGKEY STARTSWITH 'g'", true},
		{"TAGS IS NULL", false},
		{"tags = 'red'", false},
		{"BORN_TIMESTAMP IS NULL", true},
	} {
		f, err := Compile(c.expression)
		require.NoError(t, err, c.expression)
		require.Equal(t, c.expression, f.String())
		require.Equal(t, c.want, f.Matches(stored(sample)), c.expression)
		reference, ok := refCompile(c.expression)
		require.True(t, ok, c.expression)
		require.Equal(t, c.want, reference(sample), "the reference, %s", c.expression)
	}
}

func TestAFaultIsToldWithItsPlace(t *testing.T) {
	for expression, want := range map[string]string{
		"":                          "it is empty",
		" \n\t":                     "it is empty",
		"a >":                       "line 1, column 4: the expression ends where more is expected",
		"a > 5 AND":                 "line 1, column 10: the expression ends where more is expected",
		"-- nothing":                "line 1, column 11: the expression ends where more is expected",
		"a 5":                       "line 1, column 3: unexpected 5",
		"a = 5 b = 6":               "line 1, column 7: unexpected b",
		"a = 5\n AND\n  ORDER > ":   "line 3, column 11: the expression ends where more is expected",
		"größe > 5":                 `line 1, column 3: unexpected 'ö'`,
		"'日本' = a )":                "line 1, column 10: unexpected )",
		"a = NULL":                  "line 1, column 5: NULL cannot be compared; use IS NULL or IS NOT NULL",
		"NULL IS NULL":              "line 1, column 1: NULL cannot be compared; use IS NULL or IS NOT NULL",
		"a = 'x":                    "line 1, column 5: a text begins that does not end",
		"a = 5 /* x":                "line 1, column 7: a comment begins that does not end",
		"a != 5":                    `line 1, column 3: unexpected '!'`,
		"a == 5":                    "line 1, column 4: unexpected =",
		"a LIKE 'x%'":               "line 1, column 3: unexpected LIKE",
		"a + 1 > 5":                 "line 1, column 3: unexpected +",
		"a > 1 + 1":                 "line 1, column 7: unexpected +",
		"-a > 1":                    "line 1, column 2: unexpected a",
		"a = 05":                    "line 1, column 5: 05: a number must not begin with 0",
		"a = 9223372036854775808":   "line 1, column 5: 9223372036854775808 is out of the range of 64-bit integers",
		"a = -9223372036854775809":  "is out of the range of 64-bit integers",
		"a = 1e999":                 "line 1, column 5: 1e999 is out of the range of numbers",
		"a > 'x'":                   "line 1, column 5: the text 'x' cannot be compared by order, only numbers can",
		"TRUE < a":                  "line 1, column 1: TRUE cannot be compared by order, only numbers can",
		"(a = 1) < 5":               "line 1, column 1: a condition cannot be compared by order, only numbers can",
		"TRUE = 1":                  "line 1, column 6: TRUE cannot be compared with 1",
		"1.5 = (a = 1)":             "line 1, column 5: 1.5 cannot be compared with a condition",
		"a BETWEEN 2 AND 1":         "line 1, column 11: BETWEEN 2 AND 1: nothing is, the first must not be the greater one",
		"a BETWEEN 1.5 AND 1":       "the first must not be the greater one",
		"a BETWEEN 'a' AND 'b'":     "line 1, column 11: the text 'a' cannot be compared by order, only numbers can",
		"a BETWEEN 1":               "line 1, column 12: the expression ends where more is expected",
		"a IN ()":                   "line 1, column 7: unexpected )",
		"a IN (1, 2)":               "line 1, column 7: unexpected 1",
		"a IN ('x',)":               "line 1, column 10: unexpected ,",
		"a IN 'x'":                  "line 1, column 6: unexpected 'x'",
		"5 IN ('x')":                "line 1, column 1: 5 is no property",
		"'x' CONTAINS 'x'":          "line 1, column 1: the text 'x' is no property",
		"a CONTAINS b":              "line 1, column 12: unexpected b",
		"a CONTAINS 5":              "line 1, column 12: unexpected 5",
		"a NOT 5":                   "line 1, column 7: unexpected 5",
		"a IS 5":                    "line 1, column 6: unexpected 5",
		"5":                         "line 1, column 1: 5 is neither true nor false",
		"'x' AND a = 5":             "line 1, column 1: the text 'x' is neither true nor false",
		"a = 5 OR (b = 'x'":         "line 1, column 18: the expression ends where more is expected",
		"a = NOT b":                 "line 1, column 5: unexpected NOT",
		"a b":                       "line 1, column 3: unexpected b",
		"a > 5; DROP":               `line 1, column 6: unexpected ';'`,
		"abs(a) > 5":                "line 1, column 4: unexpected (",
		"a = 5 AND " + "(b = \xff)": "it is not valid UTF-8",
		strings.Repeat("(", MaxDepth+1) + "a = 5" + strings.Repeat(")", MaxDepth+1): fmt.Sprintf(
			"line 1, column %d: more than %d parentheses inside each other", MaxDepth+1, MaxDepth),
		strings.Repeat(" ", MaxLength) + "a": fmt.Sprintf("it has %d bytes, the limit is %d", MaxLength+1, MaxLength),
	} {
		f, err := Compile(expression)
		require.ErrorIs(t, err, mq.ErrIllegalFilter, expression)
		require.ErrorContains(t, err, want, expression)
		require.Nil(t, f)
		require.Less(t, len(err.Error()), 200)
		if len(expression) < MaxLength && want != "it is not valid UTF-8" && !strings.Contains(want, "parentheses") {
			_, ok := refCompile(expression)
			require.False(t, ok, "the reference takes %s", expression)
		}
	}
}

func TestExpressionsAtTheLimits(t *testing.T) {
	deep := strings.Repeat("(", MaxDepth) + "a = 5" + strings.Repeat(")", MaxDepth)
	var names []string
	for i := range 900 {
		names = append(names, fmt.Sprintf("p%d = '%d'", i, i))
	}
	for _, expression := range []string{
		deep,
		strings.Repeat("NOT ", 4000) + "a = 5",
		"a = " + strings.Repeat("- ", 4000) + "5",
		strings.Join(names, " OR ") + " OR a = 5",
	} {
		f, err := Compile(expression)
		require.NoError(t, err)
		require.True(t, f.Matches(stored(sample)))
	}
	f, err := Compile(strings.Join(names, " AND "))
	require.NoError(t, err)
	all := map[string]string{}
	for i := range 900 {
		all[fmt.Sprint("p", i)] = fmt.Sprint(i)
	}
	require.True(t, f.Matches(stored(all)))
	delete(all, "p899")
	require.False(t, f.Matches(stored(all)))
}

func TestOfSeveralValuesOfANameTheLastCounts(t *testing.T) {
	f, err := Compile("a = '2'")
	require.NoError(t, err)
	one, _ := stored(map[string]string{"a": "1"})
	two, _ := stored(map[string]string{"a": "2"})
	require.True(t, f.Matches(append(slices.Clone(one), two...), nil))
	require.False(t, f.Matches(append(slices.Clone(two), one...), nil))
}

func TestAUserPropertyIsNotTakenForOneOfTheSystem(t *testing.T) {
	f, err := Compile("TAGS = 'red'")
	require.NoError(t, err)
	entry := protowire.AppendString(protowire.AppendTag(nil, fieldKey, protowire.BytesType), "TAGS")
	entry = protowire.AppendString(protowire.AppendTag(entry, fieldValue, protowire.BytesType), "red")
	properties := protowire.AppendBytes(protowire.AppendTag(nil, fieldProperty, protowire.BytesType), entry)
	require.False(t, f.Matches(properties, nil))
	_, system := stored(map[string]string{nameTags: "red"})
	require.True(t, f.Matches(properties, system))
}

func TestWhatIsNoMessageDoesNotMatch(t *testing.T) {
	f, err := Compile("a = 5 OR a IS NULL OR TAGS IS NULL")
	require.NoError(t, err)
	properties, system := stored(sample)
	require.True(t, f.Matches(properties, nil))
	require.False(t, f.Matches(properties[:len(properties)-1], nil))
	require.False(t, f.Matches(nil, system[:3]))
	require.False(t, f.Matches([]byte{0xff}, nil))
	require.False(t, f.Matches([]byte{8, 1}, nil))
}

func TestMatchingAllocatesNothing(t *testing.T) {
	properties, system := stored(sample)
	for _, expression := range []string{
		"a > 4 AND b IN ('x', 'y') AND d < 6.5 AND TAGS = 'red'", "uni CONTAINS 'ße' OR m IS NULL", "NOT (t = FALSE) AND quote STARTSWITH 'it'",
		"a BETWEEN 1 AND 9 AND six > a AND UNIQ_KEY ENDSWITH '2'",
	} {
		f, err := Compile(expression)
		require.NoError(t, err)
		require.True(t, f.Matches(properties, system))
		require.Zero(t, testing.AllocsPerRun(100, func() { f.Matches(properties, system) }), expression)
	}
}

func BenchmarkMatches(b *testing.B) {
	properties, system := stored(map[string]string{
		"region": "eu-west", "amount": "129", "currency": "EUR", "customer": "c-4711", nameTags: "created", nameKeys: "order-1", nameID: "01A2B3C4D5E6F708091A2B3C4D5E6F7081",
	})
	for _, expression := range []string{"amount > 100", "amount > 100 AND region IN ('eu-west', 'eu-north') AND TAGS = 'created'", "other = 'x'"} {
		b.Run(expression, func(b *testing.B) {
			f, err := Compile(expression)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				f.Matches(properties, system)
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile("amount > 100 AND region IN ('eu-west', 'eu-north') AND TAGS = 'created'"); err != nil {
			b.Fatal(err)
		}
	}
}
