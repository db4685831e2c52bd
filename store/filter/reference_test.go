package filter

import (
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The reference is the same language once more, as plainly as it can be written: it
// reads an expression from left to right into closures over a map of properties.

// refValue is nil for what is unknown or missing, else a bool, a string or a *big.Rat.
type refValue any

type refKind int

const (
	refProperty refKind = iota
	refText
	refInteger
	refDecimal
	refBoolean
	refCondition
)

type refTerm struct {
	kind refKind
	eval func(map[string]string) refValue
}

func (t refTerm) numeric() bool { return t.kind == refInteger || t.kind == refDecimal }
func (t refTerm) logical() bool { return t.kind == refBoolean || t.kind == refCondition }

type refFault struct{}

func refFail() { panic(refFault{}) }

type refParser struct{ tokens []string }

var (
	refBlank  = regexp.MustCompile(`^(\s+|--[^\n]*|/\*(?s:.*?)\*/)`)
	refTokens = regexp.MustCompile(`^('([^']|'')*'|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+[lL]?|[A-Za-z_$][A-Za-z0-9_$]*|<>|<=|>=|[=<>(),+-])`)
	refWord   = regexp.MustCompile(`^[A-Za-z_$]`)
	refNumber = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)
	refWhole  = regexp.MustCompile(`^[+-]?[0-9]+$`)
)

// refCompile returns false for what is no expression.
func refCompile(expression string) (matches func(map[string]string) bool, ok bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(refFault); !fault {
				panic(r)
			}
			matches, ok = nil, false
		}
	}()
	p := &refParser{}
	for rest := expression; rest != ""; {
		if blank := refBlank.FindString(rest); blank != "" {
			rest = rest[len(blank):]
			continue
		}
		token := refTokens.FindString(rest)
		if token == "" {
			refFail()
		}
		rest = rest[len(token):]
		if refWord.MatchString(token) && slices.Contains(strings.Fields(keywords), strings.ToUpper(token)) {
			token = "#" + strings.ToUpper(token)
		}
		p.tokens = append(p.tokens, token)
	}
	t := refBool(p.or())
	if len(p.tokens) > 0 {
		refFail()
	}
	return func(m map[string]string) bool { return t.eval(m) == true }, true
}

func (p *refParser) peek(i int) string {
	if i < len(p.tokens) {
		return p.tokens[i]
	}
	return ""
}

func (p *refParser) take(tokens ...string) bool {
	for i, token := range tokens {
		if p.peek(i) != token {
			return false
		}
	}
	p.tokens = p.tokens[len(tokens):]
	return true
}

func (p *refParser) must(token string) {
	if !p.take(token) {
		refFail()
	}
}

func refBool(t refTerm) refTerm {
	switch t.kind {
	case refCondition, refBoolean:
		return t
	case refProperty:
		return refTerm{refCondition, func(m map[string]string) refValue {
			if t.eval(m) == nil {
				return nil
			}
			return false
		}}
	}
	refFail()
	return refTerm{}
}

func refNot(v refValue) refValue {
	if v == nil {
		return nil
	}
	return !v.(bool)
}

func (p *refParser) or() refTerm {
	left := p.and()
	for p.take("#OR") {
		a, b := refBool(left), refBool(p.and())
		left = refTerm{refCondition, func(m map[string]string) refValue {
			x, y := a.eval(m), b.eval(m)
			switch {
			case x == true || y == true:
				return true
			case x == nil || y == nil:
				return nil
			}
			return false
		}}
	}
	return left
}

func (p *refParser) and() refTerm {
	left := p.not()
	for p.take("#AND") {
		a, b := refBool(left), refBool(p.not())
		left = refTerm{refCondition, func(m map[string]string) refValue {
			x, y := a.eval(m), b.eval(m)
			switch {
			case x == false || y == false:
				return false
			case x == nil || y == nil:
				return nil
			}
			return true
		}}
	}
	return left
}

func (p *refParser) not() refTerm {
	if p.take("#NOT") {
		t := refBool(p.not())
		return refTerm{refCondition, func(m map[string]string) refValue { return refNot(t.eval(m)) }}
	}
	return p.equality()
}

func (p *refParser) equality() refTerm {
	left := p.comparison()
	for {
		a := left
		switch {
		case p.take("#IS", "#NULL"):
			left = refTerm{refCondition, func(m map[string]string) refValue { return a.eval(m) == nil }}
		case p.take("#IS", "#NOT", "#NULL"):
			left = refTerm{refCondition, func(m map[string]string) refValue { return a.eval(m) != nil }}
		case p.take("="):
			left = refEqual(a, p.comparison())
		case p.take("<>"):
			equal := refEqual(a, p.comparison())
			left = refTerm{refCondition, func(m map[string]string) refValue { return refNot(equal.eval(m)) }}
		default:
			return left
		}
	}
}

func refEqual(a, b refTerm) refTerm {
	if a.logical() && b.numeric() || a.numeric() && b.logical() {
		refFail()
	}
	return refTerm{refCondition, func(m map[string]string) refValue {
		x, y := a.eval(m), b.eval(m)
		if x == nil || y == nil {
			return nil
		}
		switch {
		case a.logical() || b.logical():
			return refTruth(x) == refTruth(y)
		case a.numeric() || b.numeric():
			return refOrder(a, b, x, y, func(c int) bool { return c == 0 })
		}
		return x == y
	}}
}

func refTruth(v refValue) bool {
	if s, ok := v.(string); ok {
		return strings.ToLower(s) == "true"
	}
	return v.(bool)
}

// refOrder compares as integers where both sides allow it, else as doubles.
func refOrder(a, b refTerm, x, y refValue, want func(int) bool) refValue {
	p, q := refAsNumber(x, b.kind == refInteger), refAsNumber(y, a.kind == refInteger)
	if p == nil || q == nil {
		return nil
	}
	_, exactX := p.(*big.Int)
	_, exactY := q.(*big.Int)
	if exactX && exactY {
		return want(p.(*big.Int).Cmp(q.(*big.Int)))
	}
	f, g := refFloat(p), refFloat(q)
	switch {
	case f < g:
		return want(-1)
	case f > g:
		return want(1)
	}
	return want(0)
}

func refFloat(v any) float64 {
	if i, ok := v.(*big.Int); ok {
		return float64(i.Int64())
	}
	return v.(float64)
}

// refAsNumber returns a *big.Int, a float64 or nil.
func refAsNumber(v refValue, integer bool) any {
	s, isText := v.(string)
	switch {
	case !isText:
		return v
	case integer && refWhole.MatchString(s):
		i, _ := new(big.Int).SetString(s, 10)
		if i.IsInt64() {
			return i
		}
		return nil
	case !integer && refNumber.MatchString(s):
		f, _ := strconv.ParseFloat(s, 64)
		return f
	}
	return nil
}

func (p *refParser) comparison() refTerm {
	left := p.operand()
	for {
		a := left
		op := p.peek(0)
		switch op {
		case "<", "<=", ">", ">=":
			p.take(op)
			left = refCompare(op, a, p.operand())
			continue
		}
		negated := op == "#NOT"
		if negated {
			op = p.peek(1)
		}
		switch op {
		case "#BETWEEN", "#IN", "#CONTAINS", "#STARTSWITH", "#ENDSWITH":
		default:
			return left
		}
		if negated {
			p.take("#NOT")
		}
		p.take(op)
		if op == "#BETWEEN" {
			left = p.between(a, negated)
		} else {
			left = p.find(op, a, negated)
		}
	}
}

func refCompare(op string, a, b refTerm) refTerm {
	for _, t := range []refTerm{a, b} {
		if !t.numeric() && t.kind != refProperty {
			refFail()
		}
	}
	return refTerm{refCondition, func(m map[string]string) refValue {
		x, y := a.eval(m), b.eval(m)
		if x == nil || y == nil {
			return nil
		}
		return refOrder(a, b, x, y, func(c int) bool {
			return c < 0 && op[0] == '<' || c > 0 && op[0] == '>' || c == 0 && len(op) == 2
		})
	}}
}

func (p *refParser) between(a refTerm, negated bool) refTerm {
	low := p.operand()
	p.must("#AND")
	high := p.operand()
	from, to := refCompare(">=", a, low), refCompare("<=", a, high)
	if low.numeric() && high.numeric() && refOrder(low, high, low.eval(nil), high.eval(nil), func(c int) bool { return c > 0 }) == true {
		refFail()
	}
	return refTerm{refCondition, func(m map[string]string) refValue {
		x, y := from.eval(m), to.eval(m)
		var both refValue = true
		if x == false || y == false {
			both = false
		} else if x == nil || y == nil {
			both = nil
		}
		if negated {
			return refNot(both)
		}
		return both
	}}
}

func (p *refParser) text() string {
	token := p.peek(0)
	if !strings.HasPrefix(token, "'") {
		refFail()
	}
	p.take(token)
	return strings.ReplaceAll(token[1:len(token)-1], "''", "'")
}

func (p *refParser) find(op string, a refTerm, negated bool) refTerm {
	if a.kind != refProperty {
		refFail()
	}
	var texts []string
	if op == "#IN" {
		p.must("(")
		texts = append(texts, p.text())
		for p.take(",") {
			texts = append(texts, p.text())
		}
		p.must(")")
	} else {
		texts = []string{p.text()}
	}
	return refTerm{refCondition, func(m map[string]string) refValue {
		v := a.eval(m)
		if v == nil {
			if op == "#IN" {
				return nil
			}
			return false
		}
		found := false
		for _, s := range texts {
			switch op {
			case "#IN":
				found = found || v == s
			case "#CONTAINS":
				found = strings.Contains(v.(string), s)
			case "#STARTSWITH":
				found = strings.HasPrefix(v.(string), s)
			case "#ENDSWITH":
				found = strings.HasSuffix(v.(string), s)
			}
		}
		return found != negated
	}}
}

func (p *refParser) operand() refTerm {
	constant := func(kind refKind, v refValue) refTerm {
		return refTerm{kind, func(map[string]string) refValue { return v }}
	}
	minus, signed := false, false
	for p.peek(0) == "+" || p.peek(0) == "-" {
		minus, signed = minus != (p.peek(0) == "-"), true
		p.tokens = p.tokens[1:]
	}
	token := p.peek(0)
	if token == "" {
		refFail()
	}
	if c := token[0]; c >= '0' && c <= '9' || c == '.' {
		p.take(token)
		digits := strings.TrimRight(token, "lL")
		if refWhole.MatchString(digits) {
			i, _ := new(big.Int).SetString(digits, 10)
			if minus {
				i.Neg(i)
			}
			if !i.IsInt64() || len(digits) > 1 && digits[0] == '0' {
				refFail()
			}
			return constant(refInteger, i)
		}
		f, err := strconv.ParseFloat(token, 64)
		if err != nil {
			refFail()
		}
		if minus {
			f = -f
		}
		return constant(refDecimal, f)
	}
	switch {
	case signed:
		refFail()
	case token[0] == '\'':
		return constant(refText, p.text())
	case p.take("#TRUE"):
		return constant(refBoolean, true)
	case p.take("#FALSE"):
		return constant(refBoolean, false)
	case p.take("("):
		t := p.or()
		p.must(")")
		return t
	case refWord.MatchString(token):
		p.take(token)
		return refTerm{refProperty, func(m map[string]string) refValue {
			if v, ok := m[token]; ok {
				return v
			}
			return nil
		}}
	}
	refFail()
	return refTerm{}
}
