package crashtest

import (
	"fmt"
	"runtime/debug"
)

// coroutine is a function that stands still at each of its steps until it is told to go
// on. Only one of it and its caller runs at a time, so what they do is the same each time.
type coroutine struct {
	resume chan struct{} // one for each step that it may make
	stands chan struct{} // it has come to a step
	free   chan struct{} // closed: it stops no more
	end    chan struct{} // closed when f has ended, after failed was set
	failed any
}

// interleave runs f up to its first step, where it has made none yet. step is for f's
// file system (simfs.Stepper), which calls it before each of its calls, or for f itself.
// In the end the caller calls stop.
func interleave(f func(step func())) *coroutine {
	w := &coroutine{make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{}), nil}
	go func() {
		defer close(w.end)
		defer func() {
			if v := recover(); v != nil {
				w.failed = fmt.Sprintf("%v\n%s", v, debug.Stack())
			}
		}()
		f(w.step)
	}()
	w.wait()
	return w
}

func (w *coroutine) step() {
	select {
	case w.stands <- struct{}{}:
	case <-w.free:
		return
	}
	select {
	case <-w.resume:
	case <-w.free:
	}
}

// wait returns when f stands or has ended; a panic of f goes on here.
func (w *coroutine) wait() {
	select {
	case <-w.stands:
	case <-w.end:
		if v := w.failed; v != nil {
			w.failed = nil
			panic(v)
		}
	}
}

// advance lets f make up to n more steps, and returns how many it made before it ended.
func (w *coroutine) advance(n int) (made int) {
	for ; made < n && !w.done(); made++ {
		w.resume <- struct{}{}
		w.wait()
	}
	return made
}

// done says whether f has ended.
func (w *coroutine) done() bool {
	select {
	case <-w.end:
		return true
	default:
		return false
	}
}

// stop lets f run to its end, without a stop. A second stop does nothing.
func (w *coroutine) stop() {
	select {
	case <-w.free:
	default:
		close(w.free)
	}
	<-w.end
	w.wait()
}

// meeting is how the calls of a reader fall between the steps of a writer: when the
// reader begins, the writer has made before steps; when the reader has made call calls,
// the writer makes more steps, and stands still again until the reader has ended.
type meeting struct{ before, call, more int }

func (m meeting) String() string {
	if m.more == 0 {
		return fmt.Sprintf("the writer has made %d steps, and stands still", m.before)
	}
	return fmt.Sprintf("the writer has made %d steps, and %d more after call %d of the reader", m.before, m.more, m.call)
}

// everyMeeting runs a reader against a writer in every way that a meeting can be, and
// returns how many there were. start makes what is new for each, the machine first; the
// writer runs to its end after the reader.
//
// Where the writer stands still (more is 0) call does not matter, and before the
// reader's first call (call is 0) more steps are the same as a later start: each is
// done once, as {before, 0, 0}. After the reader's last call nobody looks.
func everyMeeting(start func(m meeting) (writer, reader func(step func()))) (n int) {
	return someMeetings(1, start)
}

// someMeetings is everyMeeting for one of each so many, spread over all of them, and
// those in which the writer stands still.
func someMeetings(stride int, start func(m meeting) (writer, reader func(step func()))) (n int) {
	for before, left := 0, 1; left > 0; before++ {
		var calls int
		calls, left = meet(start, meeting{before, 0, 0})
		n++
		for call := 1; call < calls; call++ {
			for more := 1 + (before+call)%stride; more <= left; more += stride {
				meet(start, meeting{before, call, more})
				n++
			}
		}
	}
	return n
}

// meet returns the number of the reader's calls, and of the steps that the writer made
// after it.
func meet(start func(m meeting) (writer, reader func(step func())), m meeting) (calls, left int) {
	writer, reader := start(m)
	w := interleave(writer)
	defer w.stop()
	if made := w.advance(m.before); made < m.before {
		panic(fmt.Sprintf("the writer made only %d of %d steps: it does not do the same thing each time", made, m.before))
	}
	reader(func() {
		if calls == m.call {
			w.advance(m.more)
		}
		calls++
	})
	for !w.done() {
		left += w.advance(1)
	}
	return calls, left
}
