package filter

import (
	"bytes"
	"cmp"
	"math"
	"strconv"
	"strings"
	"unsafe"
)

// A number is an integer or a decimal.
type number struct {
	isDecimal bool
	integer   int64
	decimal   float64
}

func (n number) asDecimal() float64 {
	if n.isDecimal {
		return n.decimal
	}
	return float64(n.integer)
}

// compareNumbers compares integers as such, and others as decimals.
func compareNumbers(a, b number) int {
	if !a.isDecimal && !b.isDecimal {
		return cmp.Compare(a.integer, b.integer)
	}
	return cmp.Compare(a.asDecimal(), b.asDecimal())
}

// parseNumber reads a number that is the whole of a text: a sign, digits, and for a
// decimal a point and an exponent. There is nothing else around it, and no other
// notation.
func parseNumber(text []byte, integer bool) (number, bool) {
	if integer {
		v, ok := parseInteger(text)
		return number{integer: v}, ok
	}
	for _, c := range text {
		switch {
		case c >= '0' && c <= '9', c == '.', c == 'e', c == 'E', c == '+', c == '-':
		default:
			return number{}, false // ParseFloat takes names, hexadecimals and underscores
		}
	}
	v, err := strconv.ParseFloat(borrow(text), 64)
	if err != nil && !math.IsInf(v, 0) {
		return number{}, false
	}
	return number{isDecimal: true, decimal: v}, true
}

// parseInteger reads a 64-bit integer; leading zeros are allowed.
func parseInteger(text []byte) (int64, bool) {
	minus := len(text) > 0 && text[0] == '-'
	if minus || len(text) > 0 && text[0] == '+' {
		text = text[1:]
	}
	if len(text) == 0 {
		return 0, false
	}
	v := uint64(0)
	for _, c := range text {
		digit := uint64(c - '0')
		if digit > 9 || v > (1<<63-digit)/10 {
			return 0, false
		}
		v = v*10 + digit
	}
	if minus {
		return int64(-v), true
	}
	return int64(v), v <= math.MaxInt64
}

// borrow returns text as a string, for a call that does not keep it.
func borrow(text []byte) string { return unsafe.String(unsafe.SliceData(text), len(text)) }

func compareText(a []byte, b string) int { return strings.Compare(borrow(a), b) }

func containsText(text []byte, part string) bool {
	return bytes.Contains(text, unsafe.Slice(unsafe.StringData(part), len(part)))
}
