//go:build unix || windows

package pawl_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/internal/faultfs"
	"github.com/seed-5cdcd42d/pawl/internal/testkit"
	"github.com/seed-5cdcd42d/pawl/internal/vfs"
)

var flagStressSeed = flag.Uint64("stress.seed", 0, "draw TestShareStress from this seed (0: another one each time)")

// stressEnv makes the test binary one of the processes that share the store.
const stressEnv = "PAWL_TEST_STRESS"

// In such a process, init does the job and never returns.
func init() {
	env := os.Getenv(stressEnv)
	if env == "" {
		return
	}
	// Who never gets on says where, and does not stay.
	time.AfterFunc(stressPatience, func() {
		b := make([]byte, 1<<20)
		fmt.Printf("failed it hangs: %q\n", b[:runtime.Stack(b, true)])
		os.Exit(1)
	})
	var job stressJob
	err := json.Unmarshal([]byte(env), &job)
	if err == nil {
		err = map[string]func(stressJob) error{"write": stressWrite, "read": stressRead}[job.Do](job)
	}
	if err != nil {
		fmt.Printf("failed %q\n", err.Error())
		os.Exit(1)
	}
	fmt.Println("done")
	os.Exit(0)
}

// stressPatience is longer than any of the processes takes.
const stressPatience = 2 * time.Minute

// stressJob is what a process is asked to do.
type stressJob struct {
	Do         string // "write" or "read"
	Dir, Trust string
	Seed       uint64
	Worker     int // of those that write, or of those that read
	Life       int // how many processes this worker had before
	Steps      int // tasks of each goroutine

	// For each goroutine of one that writes: the task to go on with, and whether a
	// process that is dead now had begun it.
	Next  []int
	Begun []bool

	// The process ends itself before its Die-th call that changes something, or in the
	// middle of that write, if Half is set; 0: it does not.
	Die  int
	Half bool

	// Told is a commit that somebody was told of before this process was started.
	Told     pawl.Receipt
	ToldTask stressTask
}

func (j *stressJob) random(salt int) *rand.Rand {
	return rand.New(rand.NewPCG(j.Seed, uint64(j.Worker)<<48|uint64(j.Life)<<24|uint64(salt)))
}

// mortal gives a store a file system on which the process ends as the job says.
func (j *stressJob) mortal(ctx context.Context) context.Context {
	if j.Die == 0 {
		return ctx
	}
	f := faultfs.New(vfs.OS(), filepath.Dir(j.Dir))
	plan := &faultfs.Plan{N: j.Die, Action: faultfs.Action{Before: stressDie}, Only: func(c faultfs.Call) bool {
		// Waiting for a lock is most of what it does.
		return c.Mutates() && c.Path != "above" && path.Base(c.Path) != "lock" && path.Ext(c.Path) != ".lock" && (!j.Half || c.Op == "WriteAt")
	}}
	if j.Half {
		plan.Action = faultfs.Action{Half: true, After: stressDie}
	}
	f.Set(plan.Hook)
	return f.Context(ctx)
}

// stressDie ends the process as kill -9 and TerminateProcess do: nothing runs after it.
func stressDie() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		fmt.Printf("failed %q\n", err)
	}
	select {}
}

func (j *stressJob) options() *pawl.Options {
	return &pawl.Options{Shared: j.Do == "write", LockWait: map[string]time.Duration{"write": time.Minute}[j.Do],
		Limits: pawl.Limits{Journal: 64 << 10}}
}

// stressTask is one commit that is to be made: the Nth of a goroutine of a worker.
type stressTask struct{ Worker, Goroutine, N int }

func (t stressTask) String() string { return fmt.Sprintf("%d.%d.%d", t.Worker, t.Goroutine, t.N) }

func parseStressTask(s string) (t stressTask, err error) {
	f := strings.Split(s, ".")
	if len(f) != 3 {
		return t, fmt.Errorf("%q is no task", s)
	}
	for i, p := range []*int{&t.Worker, &t.Goroutine, &t.N} {
		if *p, err = strconv.Atoi(f[i]); err != nil {
			return t, err
		}
	}
	return t, nil
}

type stressKind int

const (
	stressPlain   stressKind = iota // Commit, with an id
	stressBare                      // Commit, with none: nobody can ask again
	stressExpect                    // Commit, with an id and Expect
	stressCounted                   // Update, which counts one on
)

// kind and change depend on the task only, so that the process after this one asks for
// the same, and the test knows what to find.
func (t stressTask) kind(seed uint64) stressKind {
	return []stressKind{stressPlain, stressPlain, stressBare, stressExpect, stressCounted, stressCounted, stressCounted}[t.random(seed).IntN(7)]
}

func (t stressTask) random(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 1<<63|uint64(t.Worker)<<40|uint64(t.Goroutine)<<20|uint64(t.N)))
}

func (t stressTask) id(seed uint64) string {
	if t.kind(seed) == stressBare {
		return ""
	}
	return t.String()
}

// What the parts hold: a copy of the newest entry; the count; and for each goroutine its
// last task.
const (
	stressNewest = "newest"
	stressCount  = "count"
)

func (t stressTask) part() string { return fmt.Sprintf("last-%d-%d", t.Worker, t.Goroutine) }

// change is the task's commit; count is what it counts to, if it does.
func (t stressTask) change(seed uint64, count int) pawl.Change {
	r := t.random(seed)
	r.IntN(7)
	n := 1 + r.IntN(3)
	c := pawl.Change{ID: t.id(seed), Put: map[string][]byte{t.part(): []byte(t.String())}}
	if t.kind(seed) == stressCounted {
		c.SetJSON(stressCount, count)
	} else {
		count = 0
	}
	for i := range n {
		size := r.IntN(300)
		if r.IntN(20) == 0 {
			size = r.IntN(10000)
		}
		c.Entries = append(c.Entries, fmt.Appendf(nil, "%s %d/%d %d %s", t, i+1, n, count, strings.Repeat("x", size)))
	}
	c.Put[stressNewest] = c.Entries[n-1]
	return c
}

// entryFields are the task and the count in an entry.
func entryFields(data []byte) (t stressTask, count int, err error) {
	f := strings.Fields(string(data))
	if len(f) < 3 {
		return t, 0, fmt.Errorf("entry %.80q", data)
	}
	if t, err = parseStressTask(f[0]); err == nil {
		count, err = strconv.Atoi(f[2])
	}
	return t, count, err
}

// stressFollower holds each view that it sees against those before, and within itself.
type stressFollower struct {
	at    pawl.Version
	seq   pawl.Seq
	last  []byte // the newest entry
	count int
}

func (f *stressFollower) see(v pawl.View) error {
	now := v.Version()
	if now.Revision <= f.at.Revision {
		return fmt.Errorf("after %v came %v", f.at, now)
	}
	if f.at.Revision > 0 {
		if ok, err := v.Contains(pawl.Receipt{Version: f.at}); err != nil || !ok {
			return fmt.Errorf("%v is not in the history of %v (%w)", f.at, now, err)
		}
	}
	for e, err := range v.Entries(f.seq) {
		if err != nil {
			return err
		}
		if e.Seq != f.seq+1 || e.Revision <= f.at.Revision || e.Revision > now.Revision {
			return fmt.Errorf("entry %d of revision %d, after entry %d of %v, in %v", e.Seq, e.Revision, f.seq, f.at, now)
		}
		_, count, err := entryFields(e.Data)
		if err != nil {
			return err
		}
		f.seq, f.last, f.count = e.Seq, e.Data, max(f.count, count)
	}
	f.at = now
	newest, _, err := v.Get(stressNewest)
	if err != nil || !bytes.Equal(newest, f.last) {
		return fmt.Errorf("in %v the part is %.80q, and the newest entry %.80q (%w)", now, newest, f.last, err)
	}
	count, _, err := pawl.GetJSON[int](v, stressCount)
	if err != nil || count != f.count {
		return fmt.Errorf("in %v the part counts %d, and the entries %d (%w)", now, count, f.count, err)
	}
	return nil
}

// ---- a process that writes -----------------------------------------------------

// stressWriter is such a process. What it says on the way:
//
//	open R             the store is open, at revision R
//	begin TASK         it is about to ask for a commit
//	ack TASK RECEIPT   that was acknowledged
//	found TASK RECEIPT Lookup knew it: a dead process had made it
//	not TASK           it certainly did not happen, and will not
type stressWriter struct {
	job    stressJob
	output sync.Mutex
	mu     sync.RWMutex // of store
	store  *pawl.Store
	newest atomic.Uint64 // revision that was acknowledged
}

func (w *stressWriter) say(format string, args ...any) {
	w.output.Lock()
	defer w.output.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (w *stressWriter) current() *pawl.Store {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.store
}

// stressDenied is an error that comes of a file that another process has open, where no
// file is renamed over such a one, as under Wine. The caller may try again.
func stressDenied(err error) bool {
	return runtime.GOOS == "windows" && errors.Is(err, fs.ErrPermission)
}

// stressTries bounds how often.
const stressTries = 20

func (w *stressWriter) open(ctx context.Context) (err error) {
	for range stressTries {
		if w.store, err = pawl.Open(ctx, w.job.Dir, w.job.Trust, w.job.options()); !stressDenied(err) {
			break
		}
	}
	return err
}

// reopen closes the store under the hands of the other goroutines, and opens it again.
func (w *stressWriter) reopen(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.store.Close(); err != nil && !stressDenied(err) {
		return err
	}
	return w.open(ctx)
}

func stressWrite(job stressJob) error {
	ctx, cancel := context.WithCancel(job.mortal(context.Background()))
	defer cancel()
	go func() { // whoever started this is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	w := &stressWriter{job: job}
	if err := w.open(ctx); err != nil {
		return err
	}
	if err := toldOf(w.store.View(), job); err != nil {
		return err
	}
	w.say("open %d", w.store.View().Version().Revision)
	watched := make(chan error, 1)
	go func() { watched <- w.watch(ctx) }()
	errs := make(chan error, len(job.Next))
	for g := range job.Next {
		go func() { errs <- w.work(ctx, g) }()
	}
	for range job.Next {
		if err := <-errs; err != nil {
			return err
		}
	}
	// The watch ends by itself once it has seen all that was acknowledged here.
	w.newest.Add(stressOver)
	if err := w.reopen(ctx); err != nil { // for one that has seen all, and waits
		return err
	}
	if err := <-watched; err != nil {
		return err
	}
	if err := w.store.Close(); !stressDenied(err) {
		return err
	}
	return nil
}

// stressOver is added to newest when nothing more will be acknowledged.
const stressOver = 1 << 40

// toldOf holds what a new process finds against what somebody was told before.
func toldOf(v pawl.View, job stressJob) error {
	if job.Told == (pawl.Receipt{}) {
		return nil
	}
	if ok, err := v.Contains(job.Told); err != nil || !ok {
		return fmt.Errorf("%s was acknowledged with %v, and then a process found %v (%w)", job.ToldTask, job.Told, v.Version(), err)
	}
	return nil
}

func (w *stressWriter) watch(ctx context.Context) error {
	var f stressFollower
	for {
		for v, err := range w.current().Watch(ctx, f.at.Revision) {
			switch {
			case errors.Is(err, pawl.ErrClosed), errors.Is(err, pawl.ErrUnsettled):
			case err != nil:
				return fmt.Errorf("watch: %w", err)
			default:
				if err := f.see(v); err != nil {
					return fmt.Errorf("watch: %w", err)
				}
			}
			if n := w.newest.Load(); n >= stressOver && uint64(f.at.Revision) >= n-stressOver {
				return nil
			}
		}
		if n := w.newest.Load(); n >= stressOver && uint64(f.at.Revision) >= n-stressOver {
			return nil
		}
	}
}

// work does the tasks of a goroutine, from the one that it was told.
func (w *stressWriter) work(ctx context.Context, g int) error {
	r := w.job.random(1 + g)
	acked := map[stressTask]pawl.Receipt{}
	var last pawl.Revision
	for n := w.job.Next[g]; n < w.job.Steps; n++ {
		t := stressTask{w.job.Worker, g, n}
		lost := n == w.job.Next[g] && w.job.Begun[g]
		if lost && t.kind(w.job.Seed) == stressBare {
			continue // nobody can tell
		}
		if lost {
			receipt, outcome, err := w.lookup(ctx, t)
			if err != nil {
				return err
			}
			switch outcome {
			case pawl.OutcomeCommitted:
				w.say("found %s %s", t, receipt)
				acked[t] = receipt
				continue
			case pawl.OutcomeUnknown:
				return fmt.Errorf("%s, of a dead process, is unknown", t)
			}
		}
		w.say("begin %s", t)
		receipt, done, err := w.do(ctx, r, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if !done {
			w.say("not %s", t)
			continue
		}
		if receipt.Revision <= last || receipt.Replayed {
			return fmt.Errorf("%s has receipt %v after revision %d", t, receipt, last)
		}
		last = receipt.Revision
		w.say("ack %s %s", t, receipt)
		acked[t] = receipt
		for old := w.newest.Load(); old < uint64(last) && !w.newest.CompareAndSwap(old, uint64(last)); old = w.newest.Load() {
		}
		if ok, err := w.current().View().Contains(receipt); err != nil || !ok {
			return fmt.Errorf("%s was acknowledged with %v, and is not in View (%w)", t, receipt, err)
		}
		if err := w.aside(ctx, r, t, acked); err != nil {
			return fmt.Errorf("after %s: %w", t, err)
		}
	}
	return nil
}

// lookup is Lookup, by whatever Store is open.
func (w *stressWriter) lookup(ctx context.Context, t stressTask) (pawl.Receipt, pawl.Outcome, error) {
	for try := 0; ; try++ {
		r, o, err := w.current().Lookup(ctx, t.String())
		if !errors.Is(err, pawl.ErrClosed) && (!stressDenied(err) || try >= stressTries) {
			return r, o, err
		}
	}
}

var errStress = errors.New("the function does not want to")

// do makes a task's commit. It reports false when it did not happen and is given up.
func (w *stressWriter) do(ctx context.Context, r *rand.Rand, t stressTask) (pawl.Receipt, bool, error) {
	for try := 0; ; try++ {
		ctx, cancel := context.WithCancel(ctx)
		impatient := try == 0 && r.IntN(8) == 0
		if impatient {
			timer := time.AfterFunc(time.Duration(r.IntN(3000))*time.Microsecond, cancel)
			defer timer.Stop()
		}
		refuse := try == 0 && r.IntN(8) == 0
		receipt, err := w.attempt(ctx, t, refuse, try < 3)
		cancel()
		if err == nil {
			return receipt, true, nil
		}
		if errors.Is(err, pawl.ErrInDoubt) || !errors.Is(err, pawl.ErrNotCommitted) {
			return receipt, false, err // nothing fails here
		}
		switch {
		case errors.Is(err, pawl.ErrClosed):
		case stressDenied(err) && try < stressTries:
		case errors.Is(err, pawl.ErrStale) && t.kind(w.job.Seed) == stressExpect && try < 3:
		case errors.Is(err, errStress) && refuse:
		case errors.Is(err, context.Canceled) && impatient:
			if t.kind(w.job.Seed) == stressBare {
				return receipt, false, nil
			}
		default:
			return receipt, false, err
		}
	}
}

func (w *stressWriter) attempt(ctx context.Context, t stressTask, refuse, expect bool) (pawl.Receipt, error) {
	s, seed := w.current(), w.job.Seed
	c := t.change(seed, 0)
	switch t.kind(seed) {
	case stressExpect:
		if expect {
			v := s.View().Version()
			c.Expect = &v
		}
	case stressCounted:
		return s.Update(ctx, t.String(), func(v pawl.View) (pawl.Change, error) {
			if refuse {
				return pawl.Change{}, errStress
			}
			if err := new(stressFollower).see(v); err != nil && v.Version().Revision > 0 {
				return pawl.Change{}, err
			}
			if _, o, err := s.Lookup(ctx, t.String()); err != nil || o != pawl.OutcomeNotCommitted {
				if ctx.Err() == nil {
					return pawl.Change{}, fmt.Errorf("inside: %v, %w", o, err)
				}
			}
			n, _, err := pawl.GetJSON[int](v, stressCount)
			return t.change(seed, n+1), err
		})
	}
	return s.Commit(ctx, c)
}

// aside does now and then what else a program does with a store.
func (w *stressWriter) aside(ctx context.Context, r *rand.Rand, t stressTask, acked map[stressTask]pawl.Receipt) error {
	s, seed := w.current(), w.job.Seed
	closed := func(err error) error {
		if errors.Is(err, pawl.ErrClosed) || stressDenied(err) {
			return nil
		}
		return err
	}
	if r.IntN(8) == 0 && t.kind(seed) != stressBare {
		again, err := w.attempt(ctx, t, false, false)
		want := acked[t]
		want.Replayed = true
		if err == nil && again != want {
			err = fmt.Errorf("asked again: %v, first %v", again, want)
		}
		if err := closed(err); err != nil {
			return err
		}
	}
	if r.IntN(4) == 0 {
		earlier := stressTask{t.Worker, t.Goroutine, r.IntN(t.N + 1)}
		if want, ok := acked[earlier]; ok && earlier.kind(seed) != stressBare {
			got, outcome, err := w.lookup(ctx, earlier)
			if err != nil || outcome != pawl.OutcomeCommitted || got.Version != want.Version {
				return fmt.Errorf("looked up: %v is %v, %v; acknowledged with %v (%w)", earlier, outcome, got, want, err)
			}
		}
		later := stressTask{t.Worker, t.Goroutine, t.N + 1}
		if got, outcome, err := w.lookup(ctx, later); err != nil || outcome != pawl.OutcomeNotCommitted {
			return fmt.Errorf("looked up: %v, which nobody asked for, is %v, %v (%w)", later, outcome, got, err)
		}
		if w.job.Told != (pawl.Receipt{}) && w.job.ToldTask.kind(seed) != stressBare {
			got, outcome, err := w.lookup(ctx, w.job.ToldTask)
			if err != nil || outcome != pawl.OutcomeCommitted || got.Version != w.job.Told.Version {
				return fmt.Errorf("looked up: %v is %v, %v; somebody was told of %v (%w)", w.job.ToldTask, outcome, got, w.job.Told, err)
			}
		}
	}
	if r.IntN(16) == 0 {
		if err := closed(s.Checkpoint(ctx)); err != nil {
			return err
		}
	}
	if r.IntN(32) == 0 {
		if err := closed(s.Verify(ctx, nil)); err != nil {
			return err
		}
	}
	if r.IntN(20) == 0 {
		return w.reopen(ctx)
	}
	return nil
}

// ---- a process that reads ------------------------------------------------------

// stressRead follows the store until it has seen the revision that it is told on its
// input. It says of each state that Watch yields:
//
//	view RECEIPT
func stressRead(job stressJob) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var r *pawl.Reader
	for {
		var err error
		if r, err = pawl.OpenReader(ctx, job.Dir, job.Trust, job.options()); err == nil {
			break
		}
		if !errors.Is(err, pawl.ErrUnsettled) {
			return err
		}
	}
	defer r.Close()
	if err := toldOf(r.View(), job); err != nil {
		return err
	}
	fmt.Println("open", uint64(r.View().Version().Revision))

	var seen, until atomic.Uint64
	over := func() bool { return until.Load() > 0 && seen.Load() >= until.Load() }
	go func() {
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		n, e := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil || e != nil {
			os.Exit(1) // whoever started this is gone
		}
		until.Store(n)
		if over() {
			cancel()
		}
	}()
	beside := make(chan error, 1)
	go func() { beside <- stressBeside(ctx, r, job) }()

	var f stressFollower
	for v, err := range r.Watch(ctx, 0) {
		if errors.Is(err, pawl.ErrUnsettled) {
			continue
		}
		if err == nil {
			err = f.see(v)
		}
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		fmt.Println("view", pawl.Receipt{Version: f.at})
		if now := r.View().Version().Revision; now < f.at.Revision {
			return fmt.Errorf("View returns %d, and Watch %d", now, f.at.Revision)
		}
		if seen.Store(uint64(f.at.Revision)); over() {
			break
		}
	}
	cancel()
	return <-beside
}

// stressBeside uses a Reader while another goroutine watches with it.
func stressBeside(ctx context.Context, r *pawl.Reader, job stressJob) error {
	var f stressFollower
	for ctx.Err() == nil {
		err := r.Refresh(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil && !errors.Is(err, pawl.ErrUnsettled) {
			return fmt.Errorf("refresh: %w", err)
		}
		if v := r.View(); v.Version().Revision != f.at.Revision {
			if err := f.see(v); err != nil {
				return fmt.Errorf("beside: %w", err)
			}
		}
		if t := job.ToldTask; job.Told != (pawl.Receipt{}) && t.kind(job.Seed) != stressBare {
			got, outcome, err := r.Lookup(ctx, t.String())
			if ctx.Err() != nil {
				break // it is told to end, in the middle of this
			}
			if err != nil || outcome != pawl.OutcomeCommitted || got.Version != job.Told.Version {
				return fmt.Errorf("looked up: %v is %v, %v; somebody was told of %v (%w)", t, outcome, got, job.Told, err)
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// ---- the test ------------------------------------------------------------------

// stress is what the test knows of a store that many processes share.
type stress struct {
	t      *testing.T
	base   stressJob
	mu     sync.Mutex
	acked  map[stressTask]pawl.Receipt
	maybe  map[stressTask]bool // bare, and its process was killed
	not    map[stressTask]bool // given up
	views  []pawl.Receipt      // that somebody was shown
	newest stressTask          // of those that are acknowledged
	lives  int
	kills  int
	found  int
	lost   int
	inputs []io.Writer // of the readers
	until  string      // what the readers are to see, once that is known
}

// TestShareStress: several processes share a store and are killed at random while
// others read. In the end its history is held against all that anybody was told.
func TestShareStress(t *testing.T) {
	writers, goroutines, steps, readers, kills := 4, 3, 60, 2, 6
	if testing.Short() {
		writers, steps, kills = 3, 20, 2
	}
	if runtime.GOOS == "windows" {
		writers, goroutines, steps, kills = 3, 2, 12, 2 // a process takes long under Wine
	}
	seed := *flagStressSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again: go test -run 'TestShareStress$' -stress.seed=%d (short: %v)", seed, testing.Short())
		}
	})
	dir, trust := testkit.Dirs(t)
	s := &stress{t: t, acked: map[stressTask]pawl.Receipt{}, maybe: map[stressTask]bool{}, not: map[stressTask]bool{}}
	s.base = stressJob{Dir: dir, Trust: trust, Seed: seed, Steps: steps}
	store, err := pawl.Open(t.Context(), dir, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	start := time.Now()
	var writing, reading sync.WaitGroup
	for i := range writers {
		writing.Go(func() { s.write(i, goroutines, kills) })
	}
	for i := range readers {
		reading.Go(func() { s.read(i, kills/2) })
	}
	writing.Wait()
	took := time.Since(start)

	store, err = pawl.Open(t.Context(), dir, trust, &pawl.Options{MustExist: true, LockWait: time.Minute})
	if err != nil {
		s.end(0)
		reading.Wait()
		t.Fatal(err)
	}
	final := store.View()
	if err := store.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	s.end(final.Version().Revision)
	reading.Wait()
	s.check(final, writers, goroutines)
	audit, err := os.ReadFile(filepath.Join(trust, "session.audit"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	t.Logf("seed %d: %d commits in %d processes with %d kills (%d lost acknowledgements found, %d made again; settled: %d landed, %d not landed), %d views, %.0f commits a second",
		seed, final.Version().Revision, s.lives, s.kills, s.found, s.lost, bytes.Count(audit, []byte(`"outcome":"landed"`)), bytes.Count(audit, []byte(`"outcome":"not landed"`)),
		len(s.views), float64(final.Version().Revision)/took.Seconds())
}

// life runs one process, which is killed some time after it has said so many lines, if
// that is not negative. told is called with each line.
func (s *stress) life(job stressJob, r *rand.Rand, after int, told func(what string, t stressTask, receipt pawl.Receipt) error) (done bool) {
	label := fmt.Sprintf("%s %d, life %d", job.Do, job.Worker, job.Life)
	fatal := func(err error) bool {
		s.t.Errorf("%s: %v", label, err)
		return true // no more of it
	}
	exe, err := os.Executable()
	if err != nil {
		return fatal(err)
	}
	env, err := json.Marshal(job)
	if err != nil {
		return fatal(err)
	}
	cmd := exec.Command(exe)
	// The race detector has a process wait a second at its end.
	cmd.Env = append(os.Environ(), stressEnv+"="+string(env), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fatal(err)
	}
	if err := cmd.Start(); err != nil {
		return fatal(err)
	}
	s.started(job, in)

	var killed atomic.Bool
	killed.Store(job.Die > 0)
	kill := func() {
		killed.Store(true)
		cmd.Process.Kill()
	}
	unit := time.Millisecond
	if runtime.GOOS == "windows" {
		unit *= 10
	}
	if after == 0 { // while it starts, or opens
		defer time.AfterFunc(time.Duration(r.Int64N(int64(20*unit))), kill).Stop()
	}
	var wrong error
	lines := bufio.NewReader(out)
	for n := 1; ; n++ {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // one that is not whole was not said
		}
		if n == after {
			defer time.AfterFunc(time.Duration(r.Int64N(int64(2*unit))), kill).Stop()
		}
		what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var t stressTask
		var receipt pawl.Receipt
		switch first, second, _ := strings.Cut(rest, " "); what {
		case "done":
			done = true
		case "failed":
			err = errors.New(rest)
		case "open":
		case "view":
			err = receipt.UnmarshalText([]byte(rest))
		case "begin", "not":
			t, err = parseStressTask(rest)
		case "ack", "found":
			if t, err = parseStressTask(first); err == nil {
				err = receipt.UnmarshalText([]byte(second))
			}
		default:
			err = fmt.Errorf("it said %q", line)
		}
		if err == nil {
			s.mu.Lock()
			err = told(what, t, receipt)
			s.mu.Unlock()
		}
		if err != nil && wrong == nil {
			wrong = err
			cmd.Process.Kill()
		}
	}
	err = cmd.Wait() // that it was killed is no news
	switch {
	case wrong != nil:
		return fatal(fmt.Errorf("%w\n%s", wrong, &stderr))
	case stderr.Len() > 0:
		return fatal(fmt.Errorf("%v\n%s", err, &stderr)) // the race detector, or a panic
	case !done && !killed.Load():
		return fatal(fmt.Errorf("it ended by itself: %v", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives++
	if !done {
		s.kills++
	}
	return done
}

// started tells a reader what to see, if that is known already.
func (s *stress) started(job stressJob, in io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if job.Do == "read" {
		s.inputs = append(s.inputs, in)
		_, _ = io.WriteString(in, s.until)
	}
}

// end lets the readers end.
func (s *stress) end(at pawl.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = fmt.Sprintln(uint64(at))
	for _, in := range s.inputs {
		_, _ = io.WriteString(in, s.until) // most are dead
	}
}

// next is the job of a new process, which is told what somebody was told.
func (s *stress) next(do string, worker, life int) stressJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	job := s.base
	job.Do, job.Worker, job.Life = do, worker, life
	job.ToldTask, job.Told = s.newest, s.acked[s.newest]
	return job
}

// write keeps a writer alive until it is done.
func (s *stress) write(worker, goroutines, kills int) {
	r := rand.New(rand.NewPCG(s.base.Seed, 2<<60|uint64(worker)))
	next, begun := make([]int, goroutines), make([]bool, goroutines)
	for life := 0; ; life++ {
		job := s.next("write", worker, life)
		job.Next, job.Begun = slices.Clone(next), slices.Clone(begun)
		after := -1
		if left := kills - life; left > 0 {
			steps := 0
			for _, n := range next {
				steps += s.base.Steps - n
			}
			if life%2 == 0 {
				after = max(0, r.IntN(4*steps/(left+1)+2)-1)
			} else {
				job.Die, job.Half = 1+r.IntN(6*steps/(left+1)+2), r.IntN(4) == 0
			}
		}
		done := s.life(job, r, after, func(what string, t stressTask, receipt pawl.Receipt) error {
			g := t.Goroutine
			switch what {
			case "begin":
				if begun[g] {
					s.lost++
				}
				if n := next[g]; begun[g] && t.kind(job.Seed) == stressBare || t.N != n {
					// It passed over one of which nobody can tell.
					skipped := stressTask{worker, g, n}
					if !begun[g] || t.N != n+1 || skipped.kind(job.Seed) != stressBare {
						return fmt.Errorf("it began %v instead of %v", t, skipped)
					}
					s.lost--
					s.maybe[skipped] = true
				}
				next[g], begun[g] = t.N, true
			case "ack", "found", "not":
				if t.N != next[g] {
					// It passed over one, and found the next? A process begins only one.
					return fmt.Errorf("%s %v, and what it began is %d", what, t, next[g])
				}
				next[g], begun[g] = t.N+1, false
				if what == "not" {
					s.not[t] = true
					return nil
				}
				if what == "found" {
					s.found++
				} else if receipt.Revision <= job.Told.Revision {
					return fmt.Errorf("%v was made as revision %d after %d was acknowledged", t, receipt.Revision, job.Told.Revision)
				}
				s.acked[t] = receipt
				if receipt.Revision > s.acked[s.newest].Revision {
					s.newest = t
				}
			}
			return nil
		})
		if done {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for g, n := range next {
		if begun[g] { // the last one, of which nobody can tell
			s.maybe[stressTask{worker, g, n}] = true
		}
	}
}

// read keeps a reader alive until it has seen the last state.
func (s *stress) read(worker, kills int) {
	r := rand.New(rand.NewPCG(s.base.Seed, 3<<60|uint64(worker)))
	for life := 0; ; life++ {
		after := -1
		if life < kills {
			after = r.IntN(30)
		}
		var last pawl.Revision
		done := s.life(s.next("read", worker, life), r, after, func(what string, _ stressTask, receipt pawl.Receipt) error {
			if what == "view" {
				if receipt.Revision <= last {
					return fmt.Errorf("revision %d after %d", receipt.Revision, last)
				}
				last = receipt.Revision
				s.views = append(s.views, receipt)
			}
			return nil
		})
		if done {
			return
		}
	}
}

// check holds the history at the end against all that anybody was told.
func (s *stress) check(v pawl.View, writers, goroutines int) {
	t, seed := s.t, s.base.Seed
	for _, r := range s.views {
		if ok, err := v.Contains(r); err != nil || !ok {
			t.Errorf("a reader was shown %v, which is not in the history at the end (%v)", r, err)
		}
	}
	var entries []pawl.Entry
	for e, err := range v.Entries(0) {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	made := map[stressTask]bool{}
	last := map[string]int{}
	count := 0
	for c, err := range v.Commits(0) {
		if err != nil {
			t.Fatal(err)
		}
		rev := c.Version.Revision
		n := int(c.LastSeq - c.FirstSeq + 1)
		if c.FirstSeq == 0 || len(entries) < n {
			t.Fatalf("revision %d has entries %d to %d, and %d are left", rev, c.FirstSeq, c.LastSeq, len(entries))
		}
		own := entries[:n]
		entries = entries[n:]
		task, _, err := entryFields(own[0].Data)
		if err != nil {
			t.Fatalf("revision %d: %v", rev, err)
		}
		if task.kind(seed) == stressCounted {
			count++
		}
		want := task.change(seed, count)
		same := c.ID == want.ID && n == len(want.Entries) && len(c.Put) == len(want.Put) && c.Deleted == nil
		for i := 0; same && i < n; i++ {
			same = bytes.Equal(own[i].Data, want.Entries[i]) && own[i].Seq == c.FirstSeq+pawl.Seq(i) && own[i].Revision == rev
		}
		if !same {
			t.Errorf("revision %d is no %v that counts %d: id %q, parts %q, %d entries, of which the first is %.80q", rev, task, count, c.ID, c.Put, n, own[0].Data)
		}
		if made[task] {
			t.Errorf("revision %d is %v once more", rev, task)
		}
		made[task] = true
		if before, ok := last[task.part()]; ok && task.N <= before {
			t.Errorf("revision %d is %v, and %d came before", rev, task, before)
		}
		last[task.part()] = task.N
		receipt, acked := s.acked[task]
		if ok, err := v.Contains(receipt); acked && (err != nil || !ok || receipt.Revision != rev) {
			t.Errorf("%v is revision %d, and was acknowledged with %v (%v)", task, rev, receipt, err)
		}
		if !acked && !s.maybe[task] {
			t.Errorf("revision %d is %v: given up %v", rev, task, s.not[task])
		}
	}
	if len(entries) > 0 {
		t.Errorf("%d entries belong to no commit", len(entries))
	}
	for w := range writers {
		for g := range goroutines {
			for n := range s.base.Steps {
				task := stressTask{w, g, n}
				if _, acked := s.acked[task]; !made[task] && !s.not[task] && !s.maybe[task] || acked && !made[task] {
					t.Errorf("%v is missing (acknowledged: %v)", task, acked)
				}
			}
		}
	}
	for part, n := range last {
		b, _, err := v.Get(part)
		if task, e := parseStressTask(string(b)); err != nil || e != nil || task.N != n {
			t.Errorf("part %s is %q, and the last commit was %d", part, b, n)
		}
	}
	if err := new(stressFollower).see(v); err != nil {
		t.Error(err)
	}
	if temps, err := filepath.Glob(filepath.Join(s.base.Dir, "*tmp-*")); err != nil || temps != nil {
		t.Errorf("temps left: %v, %v", temps, err)
	}
}
