// Package unittest shows how a program that keeps its state in a store is tested under
// every crash there can be, in a unit test: see ledger_test.go.
//
//	go test ./examples/unittest
package unittest

import (
	"context"
	"fmt"
	"strconv"

	"github.com/seed-5cdcd42d/pawl"
)

// Ledger is a program with a reducer: payments are entries, and the part "balance" is
// what they add up to.
type Ledger struct{ store *pawl.Store }

// Open opens the ledger, and makes sure that balance and payments agree.
func Open(ctx context.Context, dir, trust string) (*Ledger, error) {
	s, err := pawl.Open(ctx, dir, trust, nil)
	if err != nil {
		return nil, err
	}
	l := &Ledger{s}
	balance, err := l.Balance()
	if err != nil {
		return nil, err
	}
	sum := 0
	for e, err := range s.View().Entries(0) {
		if err != nil {
			return nil, err
		}
		sum = reduce(sum, e.Data)
	}
	if sum != balance {
		return nil, fmt.Errorf("the payments add up to %d, and the balance is %d", sum, balance)
	}
	return l, nil
}

// reduce is the state after one more payment.
func reduce(balance int, payment []byte) int {
	n, _ := strconv.Atoi(string(payment))
	return balance + n
}

// Balance is what all payments add up to.
func (l *Ledger) Balance() (int, error) {
	n, _, err := pawl.GetJSON[int](l.store.View(), "balance")
	return n, err
}

// Pay makes a payment: entry and balance in one commit. Asked for again with the same id,
// it is not made twice.
func (l *Ledger) Pay(ctx context.Context, id string, n int) error {
	_, err := l.store.Update(ctx, id, func(v pawl.View) (pawl.Change, error) {
		balance, _, err := pawl.GetJSON[int](v, "balance")
		if err != nil {
			return pawl.Change{}, err
		}
		payment := strconv.AppendInt(nil, int64(n), 10)
		c := pawl.Change{Entries: [][]byte{payment}}
		c.SetJSON("balance", reduce(balance, payment))
		return c, nil
	})
	return err
}

// Close closes the ledger.
func (l *Ledger) Close() error { return l.store.Close() }
