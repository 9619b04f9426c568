package estimators

import "math"

// Mean returns the mean of x, 0 if x is empty. It adds up differences to x[0]: the mean of equal numbers is exactly that
// number, so that centring them gives exactly 0; sum/n misses it by a rounding for 0.1 three times.
func Mean(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range x {
		sum += v - x[0]
	}
	return x[0] + sum/float64(len(x))
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

// MaskedMean returns the mean of rows [N][T] over the actions of each sample, [N], and over all actions; 0 where there are
// none. Masked slots may hold anything.
func MaskedMean(rows [][]float32, masks [][]bool) (perSample []float64, all float64) {
	perSample, n, total := make([]float64, len(masks)), 0, 0.0
	for i, mask := range masks {
		row, count, sum := rows[i][:len(mask)], 0, 0.0
		for t, action := range mask {
			if action {
				count, sum = count+1, sum+float64(row[t])
			}
		}
		perSample[i] = sum / float64(max(count, 1))
		n, total = n+count, total+sum
	}
	return perSample, total / float64(max(n, 1))
}

// varianceFloor keeps whitening of nearly equal advantages finite.
const varianceFloor = 1e-8

// Whiten brings the actions of rows [N][T] to mean 0 and population variance 1 over the whole batch, in place; masked
// slots are left alone. The variance is floored at 1e-8; equal advantages become exactly 0.
func Whiten(rows [][]float32, masks [][]bool) {
	n, first, sum := 0, 0.0, 0.0
	for i, mask := range masks {
		row := rows[i][:len(mask)]
		for t, action := range mask {
			if !action {
				continue
			}
			v := float64(row[t])
			if n == 0 {
				first = v
			}
			n, sum = n+1, sum+(v-first) // as in Mean
		}
	}
	if n == 0 {
		return
	}
	mean, squares := first+sum/float64(n), 0.0
	for i, mask := range masks {
		row := rows[i][:len(mask)]
		for t, action := range mask {
			if action {
				d := float64(row[t]) - mean
				squares += d * d
			}
		}
	}
	scale := 1 / math.Sqrt(max(squares/float64(n), varianceFloor))
	for i, mask := range masks {
		row := rows[i][:len(mask)]
		for t, action := range mask {
			if action {
				row[t] = float32((float64(row[t]) - mean) * scale)
			}
		}
	}
}
