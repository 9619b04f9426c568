package estimators

import "fmt"

// checkRows refuses another shape than that of the masks, and actions that are not finite.
func checkRows(what string, rows [][]float32, masks [][]bool) error {
	if err := checkShape(what, rows, masks); err != nil {
		return err
	}
	for i, mask := range masks {
		row := rows[i][:len(mask)]
		for t, action := range mask {
			if action && !finite(row[t]) {
				return fmt.Errorf("%s: sample %d slot %d is %v", what, i, t, row[t])
			}
		}
	}
	return nil
}

// applyMask sets rows to 0 where the mask is false and refuses what is not finite elsewhere.
func applyMask(what string, rows [][]float32, masks [][]bool) error {
	if err := checkShape(what, rows, masks); err != nil {
		return err
	}
	for i, mask := range masks {
		row := rows[i][:len(mask)]
		for t, action := range mask {
			if !action {
				row[t] = 0
			} else if !finite(row[t]) {
				return fmt.Errorf("%s: sample %d slot %d is %v", what, i, t, row[t])
			}
		}
	}
	return nil
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

// finite is false for NaN and infinities: their difference to themselves is NaN.
func finite[F float32 | float64](x F) bool { return x-x == 0 }
