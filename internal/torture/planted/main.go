// Command planted shows that the checkers find what they are there for: it breaks the
// rules of the product one at a time, lets the checkers judge what comes of each, and
// prints which of them found it, and after how many histories.
//
// The table of what is broken (mutation) lies beside it and nowhere else. A rule is broken
// in a copy that only the compiler sees (go test -overlay): the product has no part in it.
// Checkers that do not come to their end have found something, with the function that goes
// round and round; that goes by the time of a processor, which a busy machine does not change.
// Everything follows from a fixed seed. Its test sees that the table keeps up with the product.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/perigee-mq/perigee/internal/torture/table"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

// A plan is what the command line asks for.
type plan struct {
	short     bool
	only      string
	histories int
	workers   int
	checkers  string
	overlay   string
	verbose   bool
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var p plan
	flags := flag.NewFlagSet("planted", flag.ContinueOnError)
	flags.BoolVar(&p.short, "short", false, "plant a few of each kind only, with the simulated histories alone")
	flags.StringVar(&p.only, "run", "", "plant only what has a name like this")
	flags.IntVar(&p.histories, "histories", 120, "how many histories to simulate in each mode for each of them, at most")
	flags.IntVar(&p.workers, "workers", runtime.GOMAXPROCS(0), "how many to judge at a time")
	flags.StringVar(&p.checkers, "by", "", "ask these checkers only, separated by commas")
	flags.StringVar(&p.overlay, "overlay", "", "only write what is built into this folder")
	flags.BoolVar(&p.verbose, "v", false, "say what came of each")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(p.only)
	if err != nil {
		return err
	}
	list := slices.DeleteFunc(all(), func(m mutation) bool { return p.short && !m.short || !wanted.MatchString(m.name) })
	if len(list) == 0 {
		return errors.New("nothing to plant")
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if p.overlay != "" {
		texts, err := woven(root, list)
		if err == nil {
			_, err = writeOverlay(root, p.overlay, texts)
		}
		return err
	}
	start := time.Now()
	b, err := newBench(root, list, checkers(p.histories))
	if err != nil {
		return err
	}
	defer func() { _ = b.close() }()
	if err := p.sound(ctx, b, list); err != nil {
		return err
	}
	return report(out, list, p.judge(ctx, b, list, out), time.Since(start))
}

// by returns the checkers to ask about a mutation, in order.
func (p *plan) by(m *mutation) []string {
	switch {
	case p.checkers != "":
		return strings.Split(p.checkers, ",")
	case len(m.by) > 0 && (!p.short || !slices.Contains(m.by, histories)):
		return m.by
	case p.short:
		return []string{histories}
	}
	return inOneProcess
}

// sound checks that the checkers find nothing in the product as it is: only then does what
// they find say anything.
func (p *plan) sound(ctx context.Context, b *bench, list []mutation) error {
	names := map[string]bool{}
	for i := range list {
		for _, name := range p.by(&list[i]) {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := b.timed(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// A verdict is what came of a mutation.
type verdict struct {
	finding
	err  error // it was missed, or could not be judged
	took time.Duration
}

// judge lets the checkers judge each of the mutations.
func (p *plan) judge(ctx context.Context, b *bench, list []mutation, out io.Writer) []verdict {
	verdicts := make([]verdict, len(list))
	var mu sync.Mutex
	judged := 0
	var workers sync.WaitGroup
	next := make(chan int)
	for range max(p.workers, 1) {
		workers.Go(func() {
			for i := range next {
				start := time.Now()
				f, err := p.judgeOne(ctx, b, list, i)
				verdicts[i] = verdict{f, err, time.Since(start)}
				mu.Lock()
				if judged++; p.verbose {
					fmt.Fprintln(out, p.line(&list[i], &verdicts[i]))
				} else if judged%20 == 0 {
					fmt.Fprintf(out, "%d of %d judged\n", judged, len(list))
				}
				mu.Unlock()
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	workers.Wait()
	return verdicts
}

func (p *plan) judgeOne(ctx context.Context, b *bench, list []mutation, i int) (f finding, err error) {
	for _, name := range p.by(&list[i]) {
		if f, err = b.ask(ctx, name, i+1); !errors.Is(err, errMissed) {
			return f, err
		}
	}
	return f, err
}

// line says what came of one.
func (p *plan) line(m *mutation, v *verdict) string {
	took := v.took.Round(time.Second)
	switch {
	case v.err == nil:
		return fmt.Sprintf("found by %s (%v)  %s: %s", v.how(), took, m.name, v.text[:min(len(v.text), 300)])
	case errors.Is(v.err, errMissed):
		return fmt.Sprintf("MISSED by %s (%v)  %s: %s", strings.Join(p.by(m), ", "), took, m.name, m.rule)
	}
	return fmt.Sprintf("NOT JUDGED  %s: %v", m.name, v.err)
}

// how says which checker found it, after how many histories.
func (f *finding) how() string {
	if f.after > 0 {
		return fmt.Sprintf("%s, %d", f.by, f.after)
	}
	return f.by
}

// report prints the table, and returns an error when too little was found.
func report(out io.Writer, list []mutation, verdicts []verdict, took time.Duration) error {
	found := 0
	var missed, broken []string
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nkind\tplanted\tfound\tmissed\tfound by\t\n")
	for _, k := range kinds {
		planted, hits := 0, 0
		by := map[string]int{}
		for i := range list {
			if list[i].kind != k {
				continue
			}
			planted++
			switch err := verdicts[i].err; {
			case err == nil:
				hits++
				by[verdicts[i].by]++
			case errors.Is(err, errMissed):
				missed = append(missed, list[i].name)
			default:
				broken = append(broken, list[i].name)
			}
		}
		if planted == 0 {
			continue
		}
		found += hits
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t\n", k, planted, hits, planted-hits, counts(by))
	}
	by := map[string]int{}
	for i := range verdicts {
		if verdicts[i].err == nil {
			by[verdicts[i].by]++
		}
	}
	fmt.Fprintf(w, "all\t%d\t%d\t%d\t%s\t\n", len(list), found, len(list)-found, counts(by))
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range list {
		if err := verdicts[i].err; errors.Is(err, errMissed) {
			fmt.Fprintf(out, "missed: %s: %s\n", list[i].name, list[i].rule)
		} else if err != nil {
			fmt.Fprintf(out, "not judged: %s: %v\n", list[i].name, err)
		}
	}
	fmt.Fprintf(out, "\n%d of %d found (%.1f %%) in %v\n", found, len(list), 100*float64(found)/float64(len(list)), took.Round(time.Second))
	if err := table.Add(table.Cell{Column: "simulated, sync", Row: "planted bugs found", Value: fmt.Sprintf("%d of %d", found, len(list))}); err != nil {
		return err
	}
	if len(broken) > 0 {
		return fmt.Errorf("not judged: %s", strings.Join(broken, "; "))
	}
	if 100*found < 95*len(list) {
		return fmt.Errorf("too many were missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

// counts lists how many each checker found.
func counts(by map[string]int) string {
	names := make([]string, 0, len(by))
	for name := range by {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, by[name])
	}
	return strings.Join(names, ", ")
}
