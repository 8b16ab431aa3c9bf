package crashtest

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl/internal/simfs"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

// meetingToys are writers and readers of the files x and y, as scripts. A file has two
// sectors, each with one digit, 0 at first.
//
//	x=N   write N into both sectors of x, in place
//	x<N   make a temp with N in both, and rename it over x
//	(x    open x
//	x     read both sectors, by one call, of the file that was opened last by this name
//	)x    close it
//
// burst and any are how many different things the reader can see: where the writer goes
// on once while the reader reads, as in a meeting; and at any of its calls.
var meetingToys = []struct {
	writer, reader string
	burst, any     int
}{
	{"x=1 y=1", "(x x )x (y y )y", 9, 9},          // each is 00, 10 or 11
	{"x=1 y=1", "(y y )y (x x )x", 5, 5},          // y is not newer than x
	{"x<1 y<1", "(x x )x (y y )y", 4, 4},          // each is old or new
	{"x<1 y<1", "(y y )y (x x )x", 3, 3},          // not y alone
	{"x<1 y<1", "(x (y x y )x )y", 4, 4},          // what was opened stays
	{"x<1 y=1", "(y (x x y )x )y", 6, 6},          // what is opened early may still change in place
	{"x<1 x<2", "(x x )x (x x )x (x x )x", 9, 10}, // 0 1 2 needs two bursts
}

// TestMeetingToys: what is seen in all meetings is what a model of the same scripts
// sees in all orders of their events; and no less where the writer stops only before
// what the reader can tell.
func TestMeetingToys(t *testing.T) {
	for _, toy := range meetingToys {
		burst, anyhow := modelMeetings(toy.writer, toy.reader)
		if len(burst) != toy.burst || len(anyhow) != toy.any {
			t.Errorf("%s against %s: %d sights, %d of all; want %d, %d: %q", toy.reader, toy.writer, len(burst), len(anyhow), toy.burst, toy.any, sorted(anyhow))
		}
		all, seen := toySights(t, toy.writer, toy.reader, false)
		told, same := toySights(t, toy.writer, toy.reader, true)
		if !maps.Equal(seen, burst) || !maps.Equal(same, burst) || told >= all {
			t.Errorf("%s against %s: saw %q in %d meetings, %q in %d; the model %q", toy.reader, toy.writer, sorted(seen), all, sorted(same), told, sorted(burst))
		}
	}
}

// toySights returns how many meetings of two scripts there are, and what the reader saw.
func toySights(t *testing.T, writer, reader string, told bool) (n int, seen map[string]bool) {
	seen = map[string]bool{}
	n = everyMeeting(func(meeting) (w, r func(step func())) {
		m := simfs.New(simfs.PosixMinimal, "/a")
		old := simfs.Item{Mode: 0o600, Data: string(digits("0"))}
		m.Install(simfs.Image{"/a/x": old, "/a/y": old})
		return func(step func()) {
				playMeetingToy(t, &simfs.Stepper{Process: m.Start(), Step: step, Told: told}, writer)
			}, func(step func()) {
				seen[playMeetingToy(t, &simfs.Stepper{Process: m.Start(), Step: step}, reader)] = true
			}
	})
	return n, seen
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// digits is a file of two sectors.
func digits(d string) []byte { return []byte(strings.Repeat(d, 2*simfs.Sector)) }

// playMeetingToy carries out a script on a machine, and returns what it read.
func playMeetingToy(t *testing.T, fsys vfs.FS, script string) string {
	must := func(err error) {
		if err != nil {
			t.Error(script, err)
		}
	}
	d, err := fsys.OpenDir("/a")
	must(err)
	open, seen := map[string]vfs.File{}, []string{}
	for _, word := range strings.Fields(script) {
		switch name := word[:1]; {
		case word[0] == '(':
			open[word[1:]], err = d.Open(word[1:])
			must(err)
		case word[0] == ')':
			must(open[word[1:]].Close())
		case len(word) == 1:
			b := make([]byte, 2*simfs.Sector)
			_, err := open[name].ReadAt(b, 0)
			if err != io.EOF {
				must(err)
			}
			seen = append(seen, string([]byte{b[0], b[simfs.Sector]}))
		case word[1] == '=':
			f, err := d.OpenRW(name)
			must(err)
			_, err = f.WriteAt(digits(word[2:]), 0)
			must(err)
			must(f.Close())
		case word[1] == '<':
			f, err := d.Create("tmp", 0o600)
			must(err)
			_, err = f.WriteAt(digits(word[2:]), 0)
			must(err)
			must(f.Close())
			must(d.Rename("tmp", name))
		}
	}
	must(d.Close())
	return strings.Join(seen, " ")
}

// toyModel is what the scripts do, as plain values: names lead to files, and handles do.
type toyModel struct {
	names, open map[string]*[2]byte
	seen        []string
}

// events are those of a script that the other side can tell.
func events(script string) (all []func(m *toyModel)) {
	add := func(f func(m *toyModel)) { all = append(all, f) }
	for _, word := range strings.Fields(script) {
		name := word[:1]
		switch {
		case word[0] == '(':
			name := word[1:]
			add(func(m *toyModel) { m.open[name] = m.names[name] })
		case word[0] == ')':
		case len(word) == 1:
			add(func(m *toyModel) { m.seen = append(m.seen, string(m.open[name][:])) })
		case word[1] == '=':
			for i := range 2 {
				add(func(m *toyModel) { m.names[name][i] = word[2] })
			}
		case word[1] == '<':
			add(func(m *toyModel) { m.names[name] = &[2]byte{word[2], word[2]} })
		}
	}
	return all
}

// modelMeetings tries all orders: those in which the writer goes on at most once after
// the reader has begun and before it ends, and all.
func modelMeetings(writer, reader string) (burst, all map[string]bool) {
	burst, all = map[string]bool{}, map[string]bool{}
	w, r := events(writer), events(reader)
	var merge func(order []bool, i, j int)
	merge = func(order []bool, i, j int) { // order: true for an event of the writer
		if i < len(w) {
			merge(append(order[:len(order):len(order)], true), i+1, j)
		}
		if j < len(r) {
			merge(append(order[:len(order):len(order)], false), i, j+1)
			return
		}
		if i < len(w) {
			return
		}
		m := &toyModel{names: map[string]*[2]byte{"x": {'0', '0'}, "y": {'0', '0'}}, open: map[string]*[2]byte{}}
		i, j, bursts := 0, 0, 0
		for k, writes := range order {
			if writes {
				if j > 0 && j < len(r) && !order[k-1] {
					bursts++
				}
				w[i](m)
				i++
			} else {
				r[j](m)
				j++
			}
		}
		said := strings.Join(m.seen, " ")
		all[said] = true
		if bursts <= 1 {
			burst[said] = true
		}
	}
	merge(nil, 0, 0)
	return burst, all
}

// TestInterleave: how far a function is after each advance, and that it leaves nothing
// behind.
func TestInterleave(t *testing.T) {
	before := runtime.NumGoroutine()
	at := 0
	start := func() *coroutine {
		at = 0
		return interleave(func(step func()) {
			for range 5 {
				step()
				at++
			}
		})
	}
	w := start()
	for _, k := range []struct {
		n, made, at int
		done        bool
	}{{0, 0, 0, false}, {1, 1, 1, false}, {3, 3, 4, false}, {0, 0, 4, false}, {7, 1, 5, true}, {1, 0, 5, true}} {
		if made := w.advance(k.n); made != k.made || at != k.at || w.done() != k.done {
			t.Errorf("advance(%d) = %d, at %d, done %v; want %+v", k.n, made, at, w.done(), k)
		}
	}
	w.stop()
	w = start()
	w.advance(2)
	w.stop()
	w.stop()
	if at != 5 || !w.done() || w.advance(1) != 0 {
		t.Errorf("after stop at %d", at)
	}
	if w := interleave(func(func()) {}); !w.done() {
		t.Error("a function without steps has not ended")
	}
	for range 100 { // what has closed end may still be on its way out
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, were %d", runtime.NumGoroutine(), before)
}

// TestInterleavePanics: a panic of the function is one of whoever let it go on.
func TestInterleavePanics(t *testing.T) {
	f := func(step func()) {
		step()
		panic("oh")
	}
	for name, goOn := range map[string]func(w *coroutine){
		"advance": func(w *coroutine) { w.advance(1) },
		"stop":    (*coroutine).stop,
	} {
		w := interleave(f)
		err := guard(func() error { goOn(w); return nil })
		if err == nil || !strings.Contains(err.Error(), "oh") {
			t.Errorf("%s: %v", name, err)
		}
		w.stop()
	}
}

// TestMeetingsAreAll: which meetings there are for a writer of three steps and a reader
// of three calls, and where the writer is at each of the calls.
func TestMeetingsAreAll(t *testing.T) {
	var got []string
	n := everyMeeting(func(m meeting) (writer, reader func(step func())) {
		at := 0
		return func(step func()) {
				for range 3 {
					step()
					at++
				}
			}, func(step func()) {
				s := ""
				for range 3 {
					step()
					s += fmt.Sprint(at)
				}
				got = append(got, s)
			}
	})
	want := "000 011 022 033 001 002 003 111 122 133 112 113 222 233 223 333"
	if strings.Join(got, " ") != want || n != len(got) {
		t.Errorf("%d: %q, want %s", n, got, want)
	}
}
