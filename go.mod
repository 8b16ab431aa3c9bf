module github.com/seed-5cdcd42d/pawl

go 1.25.0

require (
	github.com/google/go-cmp v0.7.0
	golang.org/x/sys v0.37.0
)
