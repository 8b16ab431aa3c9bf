package pawl

import (
	"encoding/json"
	"errors"
	"time"
)

// auditLine is one line of the audit file: JSON, in this order of fields. Lines are
// only ever appended.
type auditLine struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"` // "unclean", "settle", "program", "migrate", or that of a Ruling
	Store   string    `json:"store"`
	Process string    `json:"process"`
	// Outcome is "landed" or "not landed" for a settled intent.
	Outcome   string   `json:"outcome,omitempty"`
	Confirmed Root     `json:"confirmed"`
	Pending   *Root    `json:"pending,omitempty"`
	Commits   []string `json:"commits,omitempty"` // ids that the intent names
	// From and To are programs, or schemas.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// What an operator has decided: about which digest, why, what was given up, and which
	// files are in quarantine since.
	Digest   *Digest  `json:"digest,omitempty"`
	Chosen   *Version `json:"chosen,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	LostFrom Revision `json:"lost_from,omitempty"`
	LostTo   Revision `json:"lost_to,omitempty"`
	SetAside []string `json:"set_aside,omitempty"`
}

// appendAudit adds a line to the audit file, durably. An error is for the caller to
// report; it never stands in the way of a store that can be opened.
func appendAudit(dir *directory, name string, line auditLine) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	f, err := dir.OpenLock(name)
	if err != nil {
		return err
	}
	err = func() error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		// A line that a crash tore ends here, so that it cannot run into this one.
		if info.Size > 0 {
			var last [1]byte
			if _, err := f.ReadAt(last[:], info.Size-1); err == nil && last[0] != '\n' {
				b = append([]byte{'\n'}, b...)
			}
		}
		if err := writeFull(f, append(b, '\n'), info.Size); err != nil {
			return err
		}
		dir.counts.fileSyncs.Add(1)
		dir.counts.bytes.Add(int64(len(b)) + 1)
		return f.Sync()
	}()
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return dir.Sync()
}
