package filter

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// truth is true, false or unknown.
type truth uint8

const (
	unknown truth = iota
	no
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

func (t truth) not() truth {
	switch t {
	case yes:
		return no
	case no:
		return yes
	}
	return unknown
}

// An op is what a node does with its parts.
type op uint8

const (
	opAnd    op = iota // nodes
	opOr               // nodes
	opNot              // the one of nodes
	opValue            // left, a boolean or a property
	opEqual            // left and right; negated
	opIsNull           // left; negated
	opLess             // left and right
	opAtMost
	opGreater
	opAtLeast
	opIn // left, a property, and texts; negated
	opContains
	opStartsWith
	opEndsWith // left, a property, and right, a text; negated
)

var (
	orders = map[string]op{"<": opLess, "<=": opAtMost, ">": opGreater, ">=": opAtLeast}
	finds  = map[string]op{"CONTAINS": opContains, "STARTSWITH": opStartsWith, "ENDSWITH": opEndsWith}
)

// A node is true, false or unknown for a message.
type node struct {
	op          op
	negated     bool
	left, right operand
	nodes       []node
	texts       []string // sorted
}

// A kind says what an operand is.
type kind uint8

const (
	property  kind = iota + 1 // its value is a text, or missing
	text                      // literals
	whole                     //
	decimal                   //
	boolean                   //
	condition                 // what is compared with TRUE, or with another condition
)

// An operand is what is compared.
type operand struct {
	kind  kind
	truth truth
	place int    // of a property
	text  string // a text, or the name of a property
	value number
	of    *node
}

func (o operand) number() bool  { return o.kind == whole || o.kind == decimal }
func (o operand) logical() bool { return o.kind == boolean || o.kind == condition }

// String describes the operand for an error.
func (o operand) String() string {
	switch o.kind {
	case property:
		return "the property " + shorten(o.text)
	case text:
		return "the text '" + shorten(o.text) + "'"
	case whole:
		return fmt.Sprint(o.value.integer)
	case decimal:
		return fmt.Sprint(o.value.decimal)
	case boolean:
		return strings.ToUpper(fmt.Sprint(o.truth == yes))
	}
	return "a condition"
}

// Matches reports whether the expression is true for the message with the stored
// properties and system properties. It changes neither and keeps nothing of them.
func (f *Filter) Matches(properties, system []byte) bool {
	var few [fewNames]value
	values := few[:]
	if len(f.names) > fewNames {
		values = make([]value, len(f.names))
	}
	if !f.read(properties, system, values) {
		return false
	}
	return f.root.evaluate(values) == yes
}

func (n *node) evaluate(values []value) truth {
	switch n.op {
	case opAnd:
		result := yes
		for i := range n.nodes {
			switch n.nodes[i].evaluate(values) {
			case no:
				return no
			case unknown:
				result = unknown
			}
		}
		return result
	case opOr:
		result := no
		for i := range n.nodes {
			switch n.nodes[i].evaluate(values) {
			case yes:
				return yes
			case unknown:
				result = unknown
			}
		}
		return result
	case opNot:
		return n.nodes[0].evaluate(values).not()
	case opValue:
		return n.left.alone(values)
	case opIsNull:
		return truthOf(n.left.missing(values) != n.negated)
	case opEqual:
		result := n.left.equal(&n.right, values)
		if n.negated {
			return result.not()
		}
		return result
	case opIn, opContains, opStartsWith, opEndsWith:
		return n.look(values[n.left.place])
	}
	return n.compare(values)
}

// alone is what a value stands for where something true or false is expected. The
// values of properties are texts, and so none of them is true.
func (o *operand) alone(values []value) truth {
	switch {
	case o.kind != property:
		return o.truth
	case values[o.place].there:
		return no
	}
	return unknown
}

// missing reports whether the operand has no value.
func (o *operand) missing(values []value) bool {
	switch o.kind {
	case property:
		return !values[o.place].there
	case condition:
		return o.of.evaluate(values) == unknown
	}
	return false
}

// look looks for texts in the value of a property. What is missing neither contains a
// text, nor is it known not to be one.
func (n *node) look(v value) truth {
	var found bool
	switch n.op {
	case opIn:
		if !v.there {
			return unknown
		}
		_, found = slices.BinarySearchFunc(n.texts, v.text, func(text string, v []byte) int {
			return -compareText(v, text)
		})
	case opContains:
		found = containsText(v.text, n.right.text)
	case opStartsWith:
		found = len(v.text) >= len(n.right.text) && string(v.text[:len(n.right.text)]) == n.right.text
	case opEndsWith:
		found = len(v.text) >= len(n.right.text) && string(v.text[len(v.text)-len(n.right.text):]) == n.right.text
	}
	return truthOf(v.there && found != n.negated)
}

// equal compares two operands. A text next to a number or to something true or false
// is taken for one; where that is not possible the result is unknown.
func (o *operand) equal(p *operand, values []value) truth {
	switch {
	case o.logical() || p.logical():
		a, b := o.asTruth(values), p.asTruth(values)
		if a == unknown || b == unknown {
			return unknown
		}
		return truthOf(a == b)
	case o.number() || p.number():
		order, known := o.order(p, values)
		if !known {
			return unknown
		}
		return truthOf(order == 0)
	}
	a, b := o.asText(values), p.asText(values)
	switch {
	case !a.there || !b.there:
		return unknown
	case a.text == nil && b.text == nil:
		return truthOf(a.literal == b.literal)
	case a.text == nil:
		return truthOf(string(b.text) == a.literal)
	case b.text == nil:
		return truthOf(string(a.text) == b.literal)
	}
	return truthOf(bytes.Equal(a.text, b.text))
}

// asTruth takes the operand for something true or false: of a text, true is TRUE in any
// case, and everything else is not.
func (o *operand) asTruth(values []value) truth {
	switch o.kind {
	case condition:
		return o.of.evaluate(values)
	case boolean:
		return o.truth
	case text:
		return truthOf(strings.EqualFold(o.text, "true"))
	}
	v := values[o.place]
	if !v.there {
		return unknown
	}
	return truthOf(bytes.EqualFold(v.text, []byte("true")))
}

// A textValue is the text of an operand, without a copy.
type textValue struct {
	there   bool
	text    []byte // of a property
	literal string
}

func (o *operand) asText(values []value) textValue {
	if o.kind == text {
		return textValue{there: true, literal: o.text}
	}
	v := values[o.place]
	return textValue{there: v.there, text: v.text}
}

func (n *node) compare(values []value) truth {
	order, known := n.left.order(&n.right, values)
	if !known {
		return unknown
	}
	switch n.op {
	case opLess:
		return truthOf(order < 0)
	case opAtMost:
		return truthOf(order <= 0)
	case opGreater:
		return truthOf(order > 0)
	default:
		return truthOf(order >= 0)
	}
}

// order compares two operands as numbers: a text as a number of the kind that the
// other one is, and two texts as decimals.
func (o *operand) order(p *operand, values []value) (order int, known bool) {
	a, ok := o.asNumber(p.kind == whole, values)
	if !ok {
		return 0, false
	}
	b, ok := p.asNumber(o.kind == whole, values)
	if !ok {
		return 0, false
	}
	return compareNumbers(a, b), true
}

func (o *operand) asNumber(wanted bool, values []value) (number, bool) {
	switch o.kind {
	case whole, decimal:
		return o.value, true
	case text:
		return parseNumber([]byte(o.text), wanted)
	}
	if v := values[o.place]; v.there {
		return parseNumber(v.text, wanted)
	}
	return number{}, false
}
