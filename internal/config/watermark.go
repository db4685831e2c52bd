package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Watermark is how full the disk of the data folder is when something begins.
// Its text is a percentage in use, such as "85%", or a size that is left, such
// as "10GiB free". One of the fields is set; "100%" is no limit at all.
type Watermark struct {
	// Percent of the disk in use, above 0 and up to 100.
	Percent float64
	// Free is what is left on the disk.
	Free Size
}

const freeSuffix = " free"

// String returns the text of the watermark.
func (w Watermark) String() string {
	if w.Free > 0 {
		return w.Free.String() + freeSuffix
	}
	return strconv.FormatFloat(w.Percent, 'f', -1, 64) + "%"
}

// Off reports whether w is no limit.
func (w Watermark) Off() bool { return w.Percent >= 100 }

// Fraction returns the part of the disk in use, from 0 to 1; 0 when the
// watermark is a size.
func (w Watermark) Fraction() float64 { return w.Percent / 100 }

// ParseWatermark returns the watermark that text stands for.
func ParseWatermark(text string) (Watermark, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseFloat(number, 64)
		if err != nil || !(percent > 0 && percent <= 100) {
			return Watermark{}, errors.New("must be a percentage above 0% and up to 100%")
		}
		return Watermark{Percent: percent}, nil
	}
	if size, ok := strings.CutSuffix(text, freeSuffix); ok {
		free, err := ParseSize(size)
		if err != nil {
			return Watermark{}, fmt.Errorf("before %q: %w", "free", err)
		}
		if free == 0 {
			return Watermark{}, errors.New("must leave more than nothing free")
		}
		return Watermark{Free: free}, nil
	}
	return Watermark{}, errors.New("must be how much of the disk is in use, such as 85%, or what is left, such as \"10GiB free\"")
}

// before reports whether a disk that fills up reaches w before other. Whether
// one of a kind comes before one of the other depends on the disk: then it is
// false, as it is when one of them is no limit.
func (w Watermark) before(other Watermark) bool {
	if (w.Free > 0) != (other.Free > 0) || w.Off() || other.Off() {
		return false
	}
	return w.Percent < other.Percent || w.Free > other.Free
}
