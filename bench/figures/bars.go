package figures

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart is a picture of panels of horizontal bars, with the lowest and highest measure on
// each.
type chart struct {
	title  string
	note   string // below the title
	panels []panel
	format func(float64) string // of values, unless the panel has its own
}

type panel struct {
	title  string
	bars   []bar
	format func(float64) string
}

type bar struct {
	label string
	color string
	Spread
}

// The layout, in pixels.
const (
	panelWidth  = 440
	labelWidth  = 150
	valueWidth  = 80
	barHeight   = 16
	barGap      = 6
	panelHead   = 26
	panelGap    = 16
	chartMargin = 16
	chartHead   = 52
	columns     = 2
)

// svg returns the picture.
func (c chart) svg() string {
	var body strings.Builder
	height := chartHead
	for first := 0; first < len(c.panels); first += columns {
		tallest := 0
		for i, p := range c.panels[first:min(first+columns, len(c.panels))] {
			c.panel(&body, chartMargin+i*(panelWidth+panelGap), height, p)
			tallest = max(tallest, panelHead+len(p.bars)*(barHeight+barGap))
		}
		height += tallest + panelGap
	}
	across := min(columns, len(c.panels))
	width := 2*chartMargin + across*panelWidth + (across-1)*panelGap
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="16" font-weight="bold" fill="#222">%s</text>`+"\n", chartMargin, html.EscapeString(c.title))
	fmt.Fprintf(&b, `<text x="%d" y="40" fill="#555">%s</text>`+"\n", chartMargin, html.EscapeString(c.note))
	b.WriteString(body.String())
	b.WriteString("</svg>\n")
	return b.String()
}

func (c chart) panel(b *strings.Builder, x, y int, p panel) {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold" fill="#222">%s</text>`+"\n", x, y+14, html.EscapeString(p.title))
	most := 0.0
	for _, bar := range p.bars {
		if !math.IsNaN(bar.Highest) {
			most = max(most, bar.Highest)
		}
	}
	format := c.format
	if p.format != nil {
		format = p.format
	}
	room := float64(panelWidth - labelWidth - valueWidth)
	at := func(v float64) float64 {
		if most == 0 {
			return 0
		}
		return room * v / most
	}
	for i, bar := range p.bars {
		top, left := y+panelHead+i*(barHeight+barGap), x+labelWidth
		middle := top + barHeight/2
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end" fill="#222">%s</text>`+"\n", left-6, middle+4, html.EscapeString(bar.label))
		if math.IsNaN(bar.Median) {
			fmt.Fprintf(b, `<text x="%d" y="%d" fill="#888">not measured</text>`+"\n", left+4, middle+4)
			continue
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", left, top, max(1, at(bar.Median)), barHeight, bar.color)
		low, high := float64(left)+at(bar.Lowest), float64(left)+at(bar.Highest)
		if high-low >= 2 {
			fmt.Fprintf(b, `<path d="M%.1f %d H%.1f M%.1f %d v6 M%.1f %d v6" stroke="#222" fill="none"/>`+"\n", low, middle, high, low, middle-3, high, middle-3)
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="#222">%s</text>`+"\n", max(high, float64(left)+at(bar.Median))+5, middle+4, html.EscapeString(format(bar.Median)))
	}
}

// short writes a number with three digits or so.
func short(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case v >= 99.95:
		return thousands(math.Round(v))
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// thousands writes a whole number with commas.
func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// duration writes microseconds in a unit that suits them.
func duration(us float64) string {
	switch {
	case math.IsNaN(us):
		return "–"
	case us >= 1e6:
		return short(us/1e6) + " s"
	case us >= 1e3:
		return short(us/1e3) + " ms"
	default:
		return short(us) + " µs"
	}
}
