package trainer

import (
	"cmp"
	"context"
	"fmt"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

func (t *Trainer) needsReference() bool { return t.cfg.Algo.needsKL() || t.cfg.Loss.needsReference() }

// checkReference tells, before anything is loaded, whether the reference model can judge the policy.
func (t *Trainer) checkReference() error {
	own, err := model.PeekConfig(t.Model)
	if err != nil {
		return err
	}
	other, err := model.PeekConfig(cmp.Or(t.Reference, t.Model))
	if err != nil {
		return fmt.Errorf("the reference model: %w", err)
	}
	if other.Vocab != own.Vocab {
		return fmt.Errorf("the reference model %s has %d tokens, but the policy %d: the tokenizer must be one", t.Reference, other.Vocab,
			own.Vocab)
	}
	return nil
}

// openReference loads the model whose log-probs the policy is held to, the run's starting weights if no other is named.
func (t *Trainer) openReference(s *torch.Scope) error {
	net, err := model.Load(s, cmp.Or(t.Reference, t.Model), t.DType)
	if err != nil {
		return fmt.Errorf("the reference model: %w", err)
	}
	t.reference = &Policy{what: "the reference's log-prob", compute: net, config: t.cfg.Optim}
	return nil
}

// consult adds to the samples and to the estimator's input what other models say of them before the update: the reference's log-probs and
// the KLs against them, and the critic's values. The row gets the mean KL of the tokens, if the estimator gets KLs.
func (t *Trainer) consult(ctx context.Context, s *torch.Scope, samples []Sample, in *estimators.Input, row map[string]float64) (err error) {
	s.SetThreads(t.Share(false))
	if t.reference != nil {
		logp, err := t.reference.perToken(ctx, s, samples)
		if err != nil {
			return err
		}
		for i := range samples {
			samples[i].Reference = logp[i]
		}
	}
	if t.critic != nil {
		after, err := t.critic.consult(ctx, s, samples, in.Options.Bootstrap)
		if err != nil {
			return err
		}
		in.Bootstrap = after
	}
	var behaviour, reference [][]float32
	for _, x := range samples { // slot t scores token t+1
		if behaviour = append(behaviour, x.Tokens.LogP[1:]); x.Reference != nil {
			reference = append(reference, x.Reference[1:])
		}
		if x.values != nil {
			in.Values = append(in.Values, x.values[1:])
		}
	}
	if !t.cfg.Algo.needsKL() {
		return nil
	}
	if in.KLs, err = estimators.KL(t.cfg.Algo.KL, behaviour, reference, in.Masks); err == nil {
		_, row["kl_reward"] = estimators.MaskedMean(in.KLs, in.Masks)
	}
	return err
}

// klCoef is the coefficient that algo.kl_target steers: that of the KL in the reward, or of the KL in the loss.
func (t *Trainer) klCoef() *float64 {
	if t.cfg.Algo.KLCoef != 0 {
		return &t.cfg.Algo.KLCoef
	}
	return &t.policy.loss.KLCoef
}

// steerKL moves the KL coefficient, if there is one, after a step of so many rollouts. The row gets the one that the step was made with.
func (t *Trainer) steerKL(row map[string]float64, rollouts int) error {
	coef, kl := t.klCoef(), row["kl"]
	if t.cfg.Algo.KLCoef != 0 {
		kl = row["kl_reward"]
	}
	if *coef == 0 {
		return nil
	}
	row["kl_coef"] = *coef
	next, err := estimators.KLController{Coef: *coef, Target: t.cfg.Algo.KLTarget, Horizon: t.cfg.Algo.KLHorizon}.Update(kl, rollouts)
	*coef, t.KLCoef = next.Coef, next.Coef
	return err
}
