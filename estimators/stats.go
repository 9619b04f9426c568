package estimators

import "math"

// Mean returns the mean of x, 0 if x is empty. The mean of equal numbers is exactly that number, so that centring them
// gives exactly 0; sum/n misses it by a rounding for 0.1 three times.
func Mean(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	sum, equal := 0.0, true
	for _, v := range x {
		sum += v
		equal = equal && v == x[0]
	}
	if equal {
		return x[0]
	}
	return sum / float64(len(x))
}

// Std returns the standard deviation of x around mean with the n-1 denominator; 0 for fewer than two numbers.
func Std(x []float64, mean float64) float64 {
	if len(x) < 2 {
		return 0
	}
	sum := 0.0
	for _, v := range x {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(x)-1))
}

// Center subtracts the mean of x from x in place.
func Center(x []float64) {
	mean := Mean(x)
	for i := range x {
		x[i] -= mean
	}
}

// varianceFloor keeps whitening of nearly equal advantages finite.
const varianceFloor = 1e-8

// Whiten brings the actions of rows [N][T] to mean 0 and population variance 1 over the whole batch, in place; masked
// slots are left alone. The variance is floored at 1e-8; equal advantages become exactly 0.
func Whiten(rows [][]float32, masks [][]bool) {
	n, sum, lo, hi := 0, 0.0, math.Inf(1), math.Inf(-1)
	actions(rows, masks, func(x *float32) {
		v := float64(*x)
		n, sum, lo, hi = n+1, sum+v, min(lo, v), max(hi, v)
	})
	if n == 0 {
		return
	}
	mean, squares := sum/float64(n), 0.0
	if lo == hi {
		mean = lo
	}
	actions(rows, masks, func(x *float32) {
		d := float64(*x) - mean
		squares += d * d
	})
	scale := 1 / math.Sqrt(max(squares/float64(n), varianceFloor))
	actions(rows, masks, func(x *float32) { *x = float32((float64(*x) - mean) * scale) })
}

// actions calls f for every slot whose mask is true.
func actions(rows [][]float32, masks [][]bool, f func(*float32)) {
	for i, mask := range masks {
		for t, action := range mask {
			if action {
				f(&rows[i][t])
			}
		}
	}
}
