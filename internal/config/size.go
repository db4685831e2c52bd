package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. Its text is a whole number and, without or with a
// blank between, one of the units B, KiB, MiB, GiB and TiB; no unit means bytes.
type Size int64

var units = [...]struct {
	name  string
	bytes Size
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// String returns the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && s%u.bytes == 0 {
			return strconv.FormatInt(int64(s/u.bytes), 10) + u.name
		}
	}
	return "0B"
}

// ParseSize returns the size that text stands for.
func ParseSize(text string) (Size, error) {
	number, factor := text, Size(1)
	for _, u := range units {
		if digits, ok := strings.CutSuffix(text, u.name); ok {
			number, factor = strings.TrimRight(digits, " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("must be a whole number of B, KiB, MiB, GiB or TiB, such as 64MiB")
	}
	if Size(n) > math.MaxInt64/factor {
		return 0, fmt.Errorf("is beyond %s", Size(math.MaxInt64))
	}
	return Size(n) * factor, nil
}
