package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file is the world outside, which no crash of the agent takes back: a server that runs
// beside it, and a directory. In the end it says what really happened.

// world is what the tools act on.
type world struct {
	out  string
	url  string
	stop func() error

	mu    sync.Mutex
	calls map[string]int    // of the server's two ends, by path and errand
	known map[string]string // answers of /notify, by key
	busy  sync.WaitGroup
}

// newWorld starts a server on this machine, and makes a directory.
func newWorld(out string) (*world, error) {
	if err := os.MkdirAll(out, 0o700); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &world{out: out, url: "http://" + l.Addr().String(), calls: map[string]int{}, known: map[string]string{}}
	server := &http.Server{Handler: w, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // ends with Close
	w.stop = server.Close
	return w, nil
}

// ServeHTTP does what it is asked for, however it goes on with whoever asks. It takes a moment
// before and after, as servers do: a caller that is killed meanwhile does not hear of it.
func (w *world) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.busy.Add(1)
	defer w.busy.Done()
	var e errand
	if err := json.NewDecoder(http.MaxBytesReader(out, r.Body, 1<<10)).Decode(&e); err != nil || r.URL.Path != "/notify" && r.URL.Path != "/charge" {
		http.Error(out, "what is that?", http.StatusBadRequest)
		return
	}
	time.Sleep(rand.N(2 * time.Millisecond))
	answer := w.does(r.URL.Path, e, r.Header.Get("Idempotency-Key"))
	time.Sleep(rand.N(2 * time.Millisecond))
	_, _ = fmt.Fprint(out, answer)
}

// does has the effect. One that has a key has it once.
func (w *world) does(path string, e errand, key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if answer, ok := w.known[key]; ok && key != "" {
		return answer
	}
	w.calls[fmt.Sprint(path, e.Number)]++
	answer := fmt.Sprintf("%s %d", path[1:], len(w.calls))
	if key != "" {
		w.known[key] = answer
	}
	return answer
}

// happened tells how often each of so many errands has happened.
func (w *world) happened(count int) ([]int, error) {
	w.busy.Wait() // what a dead worker has asked for comes to its end
	times := make([]int, count+1)
	note := func(text string) error {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 || n > count {
			return fmt.Errorf("something happened that is no errand: %q", text)
		}
		times[n]++
		return nil
	}
	saved, err := filepath.Glob(filepath.Join(w.out, "*.txt"))
	if err != nil {
		return nil, err
	}
	for _, name := range saved {
		b, err := os.ReadFile(name)
		if err == nil {
			err = note(string(b))
		}
		if err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(filepath.Join(w.out, logName), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if err := note(lines.Text()); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := 1; n <= count; n++ {
		times[n] += w.calls[fmt.Sprint("/notify", n)] + w.calls[fmt.Sprint("/charge", n)]
	}
	return times, lines.Err()
}
