package unittest

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/seed-5cdcd42d/pawl"
	"github.com/seed-5cdcd42d/pawl/crashtest"
)

// Every way in which a kill or a power cut can end two payments, and the recovery from it,
// and the recovery from that.
func TestLedgerUnderEveryCrash(t *testing.T) {
	crashtest.Run(t, func(c *crashtest.C) {
		// What runs until it crashes, and what runs afterwards, are the same: open, say what
		// was found, and pay twice.
		run := func(ctx context.Context, p *crashtest.Process) error {
			l, err := Open(ctx, "/store/ledger", "/trust/ledger") // on the simulated machine that ctx carries
			if err != nil {
				return err
			}
			balance, err := l.Balance()
			if err != nil {
				return err
			}
			p.Observe(label(balance))
			for range 2 {
				n := 1 << p.Number() // another amount in each process, so a balance tells which payments are in it
				balance += n
				p.Begin(label(balance))
				err := l.Pay(ctx, "", n)
				p.End(label(balance), err) // nil is a promise: no crash after it may lose the payment
				if err != nil {
					return err
				}
			}
			return l.Close()
		}
		c.Do(run)
		c.Recover(run)
		c.Depth(2) // the recoveries are crashed too
		// The process ids in lock files, and the audit, are no part of the state; and nobody
		// reads what a crash leaves of a temp.
		c.NeverRead("tmp-*", "ledger.tmp-*")
		c.Unexplored("/store/ledger/lock", "/trust/ledger/*.lock", "/trust/ledger/*.audit")
		c.Certain(func(err error) bool { return errors.Is(err, pawl.ErrNotCommitted) })
	})
}

func label(balance int) string {
	if balance == 0 {
		return ""
	}
	return strconv.Itoa(balance)
}

// A payment that is asked for again, because its answer was lost, is made once.
func TestPaymentIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(t.Context(), dir+"/ledger", dir+"/trust")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := l.Pay(t.Context(), "order 17", 5); err != nil {
			t.Fatal(err)
		}
	}
	if balance, err := l.Balance(); balance != 5 || err != nil {
		t.Errorf("%d, %v", balance, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(t.Context(), dir+"/ledger", dir+"/trust"); err != nil {
		t.Fatal(err)
	}
	if err := l.Pay(t.Context(), "order 17", 5); err != nil {
		t.Fatal(err)
	}
	if balance, err := l.Balance(); balance != 5 || err != nil {
		t.Errorf("after a restart: %d, %v", balance, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
