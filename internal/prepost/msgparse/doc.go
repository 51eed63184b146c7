// Package msgparse takes the answers of a model apart: text first goes to the reasoning parser, and what that leaves as
// content goes on to the tool parser. It joins the packages reasonparse and toolparse, which know nothing of each other,
// and decides for each request which of them run.
//
//   - A reasoning parser runs whenever the model has one.
//   - A tool parser runs when the request declares tools, and with tool_choice none takes calls out. Without tools it
//     runs only where the markup consists of special tokens or wraps every answer: nobody can want to see that. Markup
//     of ordinary words stays then, for clients that describe tools in a prompt of their own.
//   - A model without a tool parser that must call is held to JSON by its engine, and the JSON is read as calls.
package msgparse
