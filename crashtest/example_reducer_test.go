package crashtest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
)

// account is a program with a reducer: entries are payments, and the part "balance" is
// what they add up to.
type account struct {
	store *pawl.Store
	split bool // the mistake: two commits for one payment
}

func openAccount(ctx context.Context, split bool) (*account, int, error) {
	s, err := pawl.Open(ctx, "/store/account", "/trust/account", nil)
	if err != nil {
		return nil, 0, err
	}
	a := &account{s, split}
	balance, err := a.balance()
	if err != nil {
		return nil, 0, err
	}
	sum := 0
	for e, err := range s.View().Entries(0) {
		if err != nil {
			return nil, 0, err
		}
		n, err := strconv.Atoi(string(e.Data))
		if err != nil {
			return nil, 0, err
		}
		sum += n
	}
	if sum != balance {
		return nil, 0, fmt.Errorf("the payments add up to %d, the balance is %d", sum, balance)
	}
	return a, balance, nil
}

func (a *account) balance() (int, error) {
	b, ok, err := a.store.View().Get("balance")
	if err != nil || !ok {
		return 0, err
	}
	return strconv.Atoi(string(b))
}

func (a *account) pay(ctx context.Context, n int) error {
	balance, err := a.balance()
	if err != nil {
		return err
	}
	payment := pawl.Change{Entries: [][]byte{fmt.Append(nil, n)}}
	reduced := pawl.Change{Put: map[string][]byte{"balance": fmt.Append(nil, balance+n)}}
	if !a.split {
		payment.Put, reduced = reduced.Put, pawl.Change{}
	}
	if _, err := a.store.Commit(ctx, payment); err != nil {
		return err
	}
	_, err = a.store.Commit(ctx, reduced) // nothing, where all is in one commit
	return err
}

// exploreAccount is what a test of the program says: what it does, and how it comes
// back.
func exploreAccount(c *crashtest.C, split bool) {
	run := func(ctx context.Context, p *crashtest.Process) error {
		a, balance, err := openAccount(ctx, split)
		if err != nil {
			return err
		}
		if balance == 0 {
			p.Observe("")
		} else {
			p.Observe(strconv.Itoa(balance))
		}
		for range 2 {
			// Amounts differ between processes, so that every balance tells which
			// payments are in it.
			balance += 1 << p.Number()
			p.Begin(strconv.Itoa(balance))
			err := a.pay(ctx, 1<<p.Number())
			p.End(strconv.Itoa(balance), err)
			if err != nil {
				return err
			}
		}
		return nil
	}
	c.Unexplored("/store/account/lock", "/trust/account/*.lock", "/trust/account/*.audit")
	c.NeverRead("tmp-*", "account.tmp-*")
	c.Certain(func(err error) bool { return errors.Is(err, pawl.ErrNotCommitted) })
	c.Depth(1)
	c.Do(run)
	c.Recover(run)
}

// printer is a testing.TB that prints what a failing test says.
type printer struct {
	testing.TB
	name string
	said strings.Builder
}

type failed struct{}

func (p *printer) Helper()             {}
func (p *printer) Cleanup(func())      {}
func (p *printer) Name() string        { return p.name }
func (p *printer) Logf(string, ...any) {} // how much was covered, and how long it took
func (p *printer) Fatal(args ...any) {
	fmt.Fprintln(&p.said, args...)
	panic(failed{})
}

// says runs an exploration and returns what it fails with, or "".
func says(name string, build func(c *crashtest.C)) (said string) {
	p := &printer{name: name}
	defer func() {
		if v := recover(); v != nil && v != (failed{}) {
			panic(v)
		}
		said = p.said.String()
	}()
	crashtest.Run(p, build)
	return ""
}

// A reducer that commits an entry and the state that it leads to together survives
// every crash.
func ExampleRun() {
	// In a test: crashtest.Run(t, func(c *crashtest.C) { … })
	report := says("TestAccount", func(c *crashtest.C) { exploreAccount(c, false) })
	fmt.Printf("%q\n", report)
	// Output: ""
}

// One that commits them one after the other does not: there is a crash between the
// two.
func ExampleRun_wrong() {
	report := says("TestAccount", func(c *crashtest.C) { exploreAccount(c, true) })
	first, _, _ := strings.Cut(report, "\n")
	fmt.Println(first)
	// Output: crashtest: an ordinary crash blocks: the payments add up to 2, the balance is 0
}

// put replaces a file of a program that keeps its own; the directory is still to be
// synced.
func put(p *crashtest.Process, name, data string) error {
	fs, temp := p.FS(), fmt.Sprintf("%s.new%d", name, p.Number())
	for _, step := range []func() error{
		func() error { return fs.Create(temp, []byte(data)) },
		func() error { return fs.Sync(temp) },
		func() error { return fs.Rename(temp, name) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// exploreFiles is a program without pawl, so that the text of its failure is that of
// the explorer alone. Its reducer can make up for a balance that is behind the
// payments, and trusts that the two renames come to the disk in their order.
func exploreFiles(c *crashtest.C) {
	c.Disks("/store")
	c.Depth(1)
	c.Setup(func(_ context.Context, p *crashtest.Process) error {
		p.Begin("1")
		err := errors.Join(put(p, "/store/payments", "1"), put(p, "/store/balance", "1"))
		p.End("1", err)
		return err
	})
	c.Do(func(_ context.Context, p *crashtest.Process) error {
		p.Begin("1+2")
		err := errors.Join(put(p, "/store/payments", "1+2"), put(p, "/store/balance", "1+2"), p.FS().SyncDir("/store"))
		p.End("1+2", err)
		return err
	})
	c.Recover(func(_ context.Context, p *crashtest.Process) error {
		payments, err := p.FS().ReadFile("/store/payments")
		balance, berr := p.FS().ReadFile("/store/balance")
		if err := errors.Join(err, berr); err != nil {
			return err
		}
		if len(balance) > len(payments) {
			return fmt.Errorf("the payments are %s, the balance is %s", payments, balance)
		}
		if string(balance) != string(payments) {
			err = errors.Join(put(p, "/store/balance", string(payments)), p.FS().SyncDir("/store"))
		}
		p.Observe(string(payments))
		return err
	})
}

var update = flag.Bool("update", false, "write the golden files anew")

// TestWrongReducer: what a user sees of his mistake stays readable.
func TestWrongReducer(t *testing.T) {
	got := says("TestAccount", exploreFiles)
	const golden = "testdata/wrong-reducer.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
