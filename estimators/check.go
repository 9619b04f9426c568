package estimators

import (
	"fmt"
	"math"
)

// checkRows refuses another shape than that of the masks, and actions that are not finite.
func checkRows(what string, rows [][]float32, masks [][]bool) error {
	if err := checkShape(what, rows, masks); err != nil {
		return err
	}
	return checkFinite(what, rows, masks)
}

// applyMask sets rows to 0 where the mask is false and refuses what is not finite elsewhere.
func applyMask(what string, rows [][]float32, masks [][]bool) error {
	if err := checkShape(what, rows, masks); err != nil {
		return err
	}
	for i, mask := range masks {
		for t, action := range mask {
			if !action {
				rows[i][t] = 0
			}
		}
	}
	return checkFinite(what, rows, masks)
}

func checkShape(what string, rows [][]float32, masks [][]bool) error {
	if len(rows) != len(masks) {
		return fmt.Errorf("%s: %d samples, want %d", what, len(rows), len(masks))
	}
	for i, mask := range masks {
		if len(rows[i]) != len(mask) {
			return fmt.Errorf("%s: sample %d has %d slots, want %d", what, i, len(rows[i]), len(mask))
		}
	}
	return nil
}

func checkFinite(what string, rows [][]float32, masks [][]bool) error {
	for i, mask := range masks {
		for t, action := range mask {
			if action && !finite(float64(rows[i][t])) {
				return fmt.Errorf("%s: sample %d slot %d is %v", what, i, t, rows[i][t])
			}
		}
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
