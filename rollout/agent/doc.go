// Package agent runs agents against a rollout.Generator and records what they did as trajectories. It knows no
// tensors, no trainer and no engine.
//
// An Env is the simplest agent: the framework calls the model, the Env answers with observations and rewards. A Runner
// for it keeps the tokens exact: a prompt is rendered once, a reply is kept as the ids that were sampled, and the next
// turn is the ids so far plus the ids of the chat template's delta. Text that the model wrote is decoded for the Env
// to read and never encoded again. Where a template rewrites earlier turns, the segment is sealed and the next one
// starts from a fresh render; all segments share the rollout's reward.
//
// A ChatAgent owns its loop, and calls the model over HTTP at a Server that keeps the tokens exact in the same way: Session
// finds in each conversation that a client sends what it has recorded.
//
// A Program is a ChatAgent in any language, [agent] command = ["python3", "my_agent.py"]: its environment has the address and the key of
// the model. Where it gives no reward, a grader scores what it printed: grader = "math", or grader_command = ["python3", "grade.py"]. The
// same graders score single replies, with env = "answer".
package agent
