//go:build soak

package engine

import "testing"

func TestSoakTenThousandRequestsUnderCancellationsAndRefits(t *testing.T) { stress(t, 10_000) }
