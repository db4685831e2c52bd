package filter

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/participle/v2/lexer"

	"github.com/perigee-mq/perigee/mq"
)

// Limits of an expression.
const (
	// MaxLength is how long it may be, in bytes.
	MaxLength = 16 << 10
	// MaxDepth is how many parentheses may stand inside each other.
	MaxDepth = 100
)

// A Filter is a compiled expression. It never changes, and may be used from any
// goroutine.
type Filter struct {
	expression string
	root       node
	// names are the properties that the expression names, without repeats: values are
	// found by their place here.
	names  []string
	system systemNames
	places map[string]int // of many names
}

// String returns the text of the expression.
func (f *Filter) String() string { return f.expression }

// Compile compiles an expression. The error wraps mq.ErrIllegalFilter and says where
// the fault is, in lines and characters from 1.
func Compile(expression string) (*Filter, error) {
	switch {
	case len(expression) > MaxLength:
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", mq.ErrIllegalFilter, len(expression), MaxLength)
	case !utf8.ValidString(expression):
		return nil, fmt.Errorf("%w: it is not valid UTF-8", mq.ErrIllegalFilter)
	case strings.TrimSpace(expression) == "":
		return nil, fmt.Errorf("%w: it is empty", mq.ErrIllegalFilter)
	}
	tree, err := theGrammar().parse(expression)
	if err != nil {
		return nil, err
	}
	c := compiler{places: map[string]int{}}
	root, err := c.condition(tree)
	if err != nil {
		return nil, err
	}
	f := &Filter{expression: expression, root: root, names: c.names}
	f.system.find(c.places)
	if len(f.names) > fewNames {
		f.places = c.places
	}
	return f, nil
}

// refuse returns an error about the place.
func refuse(at lexer.Position, format string, args ...any) error {
	return fmt.Errorf("%w: line %d, column %d: %s", mq.ErrIllegalFilter, at.Line, at.Column, fmt.Sprintf(format, args...))
}

func shorten(token string) string { return mq.Shorten(token) }

// A compiler turns a tree into nodes, and refuses what cannot mean anything.
type compiler struct {
	names  []string
	places map[string]int
}

func (c *compiler) place(name string) int {
	at, ok := c.places[name]
	if !ok {
		at = len(c.names)
		c.places[name], c.names = at, append(c.names, name)
	}
	return at
}

// condition compiles what is true or false.
func (c *compiler) condition(t *orTerm) (node, error) {
	terms := make([]node, 0, len(t.Terms))
	for _, and := range t.Terms {
		factors := make([]node, 0, len(and.Terms))
		for _, not := range and.Terms {
			n, err := c.not(not)
			if err != nil {
				return node{}, err
			}
			factors = append(factors, n)
		}
		terms = append(terms, join(opAnd, factors))
	}
	return join(opOr, terms), nil
}

func join(op op, nodes []node) node {
	if len(nodes) == 1 {
		return nodes[0]
	}
	return node{op: op, nodes: nodes}
}

func (c *compiler) not(t *notTerm) (node, error) {
	o, at, err := c.equality(t.Of)
	if err != nil {
		return node{}, err
	}
	n, err := asCondition(o, at)
	if err != nil || len(t.Nots)%2 == 0 {
		return n, err
	}
	return node{op: opNot, nodes: []node{n}}, nil
}

// asCondition returns the operand as something that is true or false.
func asCondition(o operand, at lexer.Position) (node, error) {
	switch o.kind {
	case condition:
		return *o.of, nil
	case boolean, property:
		return node{op: opValue, left: o}, nil
	}
	return node{}, refuse(at, "%s is neither true nor false", o)
}

func (c *compiler) equality(t *equalTerm) (operand, lexer.Position, error) {
	at := t.First.First.Pos
	left, err := c.comparison(t.First)
	if err != nil {
		return left, at, err
	}
	for _, tail := range t.Rest {
		n := node{op: opIsNull, left: left, negated: tail.Not}
		if tail.Is == "" {
			right, err := c.comparison(tail.Right)
			if err != nil {
				return left, at, err
			}
			if left.logical() && right.number() || left.number() && right.logical() {
				return left, at, refuse(tail.Pos, "%s cannot be compared with %s", left, right)
			}
			n = node{op: opEqual, left: left, right: right, negated: tail.Op == "<>"}
		}
		left = operand{kind: condition, of: &n}
	}
	return left, at, nil
}

func (c *compiler) comparison(t *compareTerm) (operand, error) {
	left, err := c.operand(t.First)
	if err != nil {
		return left, err
	}
	for _, tail := range t.Rest {
		n, err := c.compare(left, t.First.Pos, tail)
		if err != nil {
			return left, err
		}
		left = operand{kind: condition, of: &n}
	}
	return left, nil
}

func (c *compiler) compare(left operand, at lexer.Position, t *compareTail) (node, error) {
	switch {
	case t.Op != "":
		right, err := c.operand(t.Right)
		if err == nil {
			err = ordered(left, at)
		}
		if err == nil {
			err = ordered(right, t.Right.Pos)
		}
		return node{op: orders[t.Op], left: left, right: right}, err
	case t.Low != nil:
		return c.between(left, at, t)
	case left.kind != property:
		return node{}, refuse(at, "%s is no property", left)
	case t.Find != "":
		return node{op: finds[t.Find], left: left, right: operand{kind: text, text: unquote(t.Text)}, negated: t.Not}, nil
	}
	n := node{op: opIn, left: left, negated: t.Not}
	for _, quoted := range t.In {
		n.texts = append(n.texts, unquote(quoted))
	}
	slices.Sort(n.texts)
	n.texts = slices.Compact(n.texts)
	return n, nil
}

// between compiles low <= left AND left <= high.
func (c *compiler) between(left operand, at lexer.Position, t *compareTail) (node, error) {
	low, err := c.operand(t.Low)
	if err != nil {
		return node{}, err
	}
	high, err := c.operand(t.High)
	if err != nil {
		return node{}, err
	}
	for _, o := range []struct {
		operand
		at lexer.Position
	}{{left, at}, {low, t.Low.Pos}, {high, t.High.Pos}} {
		if err := ordered(o.operand, o.at); err != nil {
			return node{}, err
		}
	}
	if low.number() && high.number() && compareNumbers(low.value, high.value) > 0 {
		return node{}, refuse(t.Low.Pos, "BETWEEN %s AND %s: nothing is, the first must not be the greater one", low, high)
	}
	n := node{op: opAnd, nodes: []node{{op: opAtLeast, left: left, right: low}, {op: opAtMost, left: left, right: high}}}
	if t.Not {
		n = node{op: opNot, nodes: []node{n}}
	}
	return n, nil
}

// ordered refuses what has no order: only numbers do.
func ordered(o operand, at lexer.Position) error {
	if o.number() || o.kind == property {
		return nil
	}
	return refuse(at, "%s cannot be compared by order, only numbers can", o)
}

func (c *compiler) operand(t *operandTerm) (operand, error) {
	switch {
	case t.Integer != "":
		return integer(t)
	case t.Decimal != "":
		v, err := strconv.ParseFloat(t.Decimal, 64)
		if err != nil {
			return operand{}, refuse(t.Pos, "%s is out of the range of numbers", shorten(t.Decimal))
		}
		if negative(t.Signs) {
			v = -v
		}
		return operand{kind: decimal, value: number{decimal: v, isDecimal: true}}, nil
	case t.Text != nil:
		return operand{kind: text, text: unquote(*t.Text)}, nil
	case t.Boolean != "":
		return operand{kind: boolean, truth: truthOf(t.Boolean == "TRUE")}, nil
	case t.Name != "":
		return operand{kind: property, place: c.place(t.Name), text: t.Name}, nil
	case t.Null:
		return operand{}, refuse(t.Pos, "NULL cannot be compared; use IS NULL or IS NOT NULL")
	}
	if inner := plain(t.Inside); inner != nil {
		return c.operand(inner)
	}
	n, err := c.condition(t.Inside)
	if err != nil {
		return operand{}, err
	}
	return operand{kind: condition, of: &n}, nil
}

// plain returns the operand that t is and nothing besides, or nil.
func plain(t *orTerm) *operandTerm {
	if len(t.Terms) > 1 || len(t.Terms[0].Terms) > 1 {
		return nil
	}
	not := t.Terms[0].Terms[0]
	if len(not.Nots) > 0 || len(not.Of.Rest) > 0 || len(not.Of.First.Rest) > 0 {
		return nil
	}
	return not.Of.First.First
}

func integer(t *operandTerm) (operand, error) {
	digits := strings.TrimRight(t.Integer, "lL")
	if len(digits) > 1 && digits[0] == '0' {
		return operand{}, refuse(t.Pos, "%s: a number must not begin with 0", shorten(t.Integer))
	}
	u, err := strconv.ParseUint(digits, 10, 64)
	minus := negative(t.Signs)
	switch {
	case err == nil && minus && u <= 1<<63:
		return operand{kind: whole, value: number{integer: int64(-u)}}, nil
	case err == nil && !minus && u <= math.MaxInt64:
		return operand{kind: whole, value: number{integer: int64(u)}}, nil
	}
	return operand{}, refuse(t.Pos, "%s is out of the range of 64-bit integers", shorten(t.Integer))
}

func negative(signs []string) (minus bool) {
	for _, sign := range signs {
		minus = minus != (sign == "-")
	}
	return minus
}

func unquote(quoted string) string { return strings.ReplaceAll(quoted[1:len(quoted)-1], "''", "'") }
