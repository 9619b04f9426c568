// Package optim updates parameters from gradients: optimizers, gradient clipping and learning-rate schedules.
// It must not know what is trained: no RL, no text, no models.
package optim
