package rollout

// MixSeed is a pure function of its arguments whose values behave as independent random numbers (the finalizer of
// SplitMix64, Steele, Lea and Flood 2014, over the parts in order).
func MixSeed(seed uint64, parts ...uint64) uint64 {
	h := mix64(seed)
	for _, p := range parts {
		h = mix64(h + p)
	}
	return h
}

func mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
