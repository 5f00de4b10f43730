// Package pace says when to do a thing again and when to say it again. Everybody in overlayd
// who retries, repairs or reports uses it, so that there is one back-off, with jitter, and
// one rule against a full log. It uses the standard library only.
package pace
