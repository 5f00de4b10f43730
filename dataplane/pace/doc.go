// Package pace decides when to retry, when to look again and when to report again. All of overlayd
// uses it to retry, repair and report, so that there is one back-off, with jitter, and one rule
// that keeps the log from filling. It also keeps traffic going until all else has ended ([Last]). It uses no other
// package of overlayd.
package pace
