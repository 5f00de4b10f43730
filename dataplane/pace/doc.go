// Package pace decides when to retry, when to look again and when to report again. All of overlayd
// uses it to retry, repair and report, so that there is one back-off, with jitter, and one rule
// that keeps the log from filling. It uses the standard library only.
package pace
