package pawl

import (
	"context"
	"errors"
	"iter"
	"time"
)

// How often a Reader looks at the trust file while it watches: soon after a change, and
// then less and less. A look is one read of 16 KiB, which is in memory.
const (
	watchLeast = 2 * time.Millisecond
	watchMost  = 100 * time.Millisecond
	watchError = time.Second // the store is tried again after an error, unless the trust file changes before
)

// Watch yields the newest state if its revision is higher than after, and then again
// after each change. It may skip states, but never the newest. It ends when ctx does,
// and with ErrClosed when the store is closed.
//
// A change that this Store makes is seen at once, and at no cost while there is none.
// With Options.Shared, those of other processes are found as by Reader.Watch, for which
// the Store holds a Reader while anybody watches: four handles, and its state. The views
// may be newer than that of View, and errors are those of Reader.Watch.
func (s *Store) Watch(ctx context.Context, after Revision) iter.Seq2[View, error] {
	return func(yield func(View, error) bool) {
		if s.opts.Shared {
			s.watchShared(ctx, after, yield)
			return
		}
		w := watcher{after: after, yield: yield}
		for ctx.Err() == nil {
			news, closed := s.news()
			if !w.show(s.View()) || closed && !w.end("watch", s.at.dir) {
				return
			}
			select {
			case <-ctx.Done():
			case <-news:
			}
		}
	}
}

// watchShared is Watch by a Reader, and by what this Store does itself.
func (s *Store) watchShared(ctx context.Context, after Revision, yield func(View, error) bool) {
	r := s.follow()
	defer s.unfollow()
	w := watcher{after: after, yield: yield}
	for ctx.Err() == nil {
		news, closed := s.news()
		if !w.show(s.View()) || closed && !w.end("watch", s.at.dir) {
			return
		}
		if !w.refresh(ctx, r) {
			return
		}
		w.wait(ctx, r, news)
	}
}

// follow returns the Reader that all who watch a shared store have in common.
func (s *Store) follow() *Reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching++; s.watching == 1 {
		s.follower = newReader(site{at: s.at, opts: s.opts, counts: new(counts)})
	}
	return s.follower
}

// unfollow closes it when nobody watches any more.
func (s *Store) unfollow() {
	s.mu.Lock()
	r := s.follower
	s.watching--
	last := s.watching == 0
	s.mu.Unlock()
	if last {
		_ = r.Close()
	}
}

// Watch yields the newest state if its revision is higher than after, and then again
// after each change. It may skip states, but never the newest. It ends when ctx does,
// and with ErrClosed when the Reader is closed.
//
// Changes are found by reading the trust file, every few milliseconds after a change and
// ten times a second when there was none for a while: that works on every file system,
// and needs no help of the operating system. An error is yielded with a zero View, once;
// who goes on after it gets the next state when there is one. View moves along.
func (r *Reader) Watch(ctx context.Context, after Revision) iter.Seq2[View, error] {
	return func(yield func(View, error) bool) {
		w := watcher{after: after, yield: yield}
		for ctx.Err() == nil {
			if r.closed() && (!w.show(r.View()) || !w.end("watch", r.at.dir)) || !w.refresh(ctx, r) {
				return
			}
			w.wait(ctx, r, nil)
		}
	}
}

// watcher is one loop over Watch.
type watcher struct {
	after Revision // what was yielded last
	yield func(View, error) bool
	told  string // the error that was yielded last; "" when none is
}

// show yields a view if it is news. It reports false when the loop is over.
func (w *watcher) show(v View) bool {
	if v.Version().Revision <= w.after {
		return true
	}
	w.after, w.told = v.Version().Revision, ""
	return w.yield(v, nil)
}

// refresh yields what a Reader finds.
func (w *watcher) refresh(ctx context.Context, r *Reader) bool {
	err := r.Refresh(ctx)
	switch {
	case err == nil:
		w.told = ""
		return w.show(r.View())
	case ctx.Err() != nil || errors.Is(err, ErrClosed):
		return true // the loop finds out
	case w.told == err.Error():
		return true
	}
	w.told = err.Error()
	return w.yield(View{}, err)
}

// wait waits until it is worth to look again.
func (w *watcher) wait(ctx context.Context, r *Reader, news <-chan struct{}) {
	if w.told != "" {
		for range watchError / watchMost {
			if !sleep(ctx, r, news, watchMost) || r.stirred(ctx, true) {
				return
			}
		}
		return
	}
	// Somebody else may have refreshed the Reader, and seen what this one looks for.
	for between := watchLeast; sleep(ctx, r, news, between) && !r.stirred(ctx, false) && r.View().Version().Revision <= w.after; {
		between = min(2*between, watchMost)
	}
}

// sleep reports false when there is something else to do than sleep.
func sleep(ctx context.Context, r *Reader, news <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-r.ended:
	case <-news:
	case <-t.C:
		return true
	}
	return false
}

// end is what a loop hears last, of one that was closed. It reports false.
func (w *watcher) end(op, dir string) bool {
	w.yield(View{}, fail(op, dir, &Error{Kind: ErrClosed}))
	return false
}

// news returns a channel that is closed with the next change, or with Close.
func (s *Store) news() (<-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newer == nil {
		s.newer = make(chan struct{})
	}
	return s.newer, s.closed
}

// tell lets those who watch know of a change. Whoever calls it holds mu.
func (s *Store) tell() {
	if s.newer != nil {
		close(s.newer)
		s.newer = nil
	}
}
