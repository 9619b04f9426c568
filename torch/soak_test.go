//go:build soak

package torch_test

import "testing"

func TestSoakTenMillionOperators(t *testing.T) { stress(t, 10_000_000) }
