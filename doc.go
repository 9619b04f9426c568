// Package molt wires trainer and engine together and holds the command line; it is the only package that knows both.
package molt
