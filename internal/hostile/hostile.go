// Package hostile makes bad requests out of good ones, for the tests of servers:
// every field removed, emptied and set to extremes, one at a time.
//
// It works on descriptors alone and knows no service, so that a field or a call
// that is added later is covered without a change here. It judges nothing.
package hostile

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Mutation spoils one place of a message.
type Mutation struct {
	// Path is the place, as in "messages[0].system_properties.tag"; empty is the
	// message itself.
	Path string
	// What is done there, as in "cleared".
	What string
	// Apply spoils the place in m, a message with the shape of the one that the
	// mutation was made for.
	Apply func(m proto.Message)

	names []string
}

// String returns place and deed.
func (m Mutation) String() string { return strings.TrimSpace(m.Path + " " + m.What) }

// NamedBy reports whether text names the place: with a field on the way to it, or
// with one below it when a whole message or list was spoiled.
func (m Mutation) NamedBy(text string) bool {
	for _, name := range m.names {
		if strings.Contains(text, name) {
			return true
		}
	}
	return false
}

// Mutations returns all mutations of m, in a stable order. m stays as it is.
func Mutations(m proto.Message) []Mutation {
	var w walk
	w.message("", nil, m.ProtoReflect(), func(root protoreflect.Message) protoreflect.Message { return root })
	return w.found
}

// A descent leads from the root of a message to a message inside of it.
type descent func(root protoreflect.Message) protoreflect.Message

type walk struct{ found []Mutation }

// add notes a mutation of the message that to leads to.
func (w *walk) add(path string, names []string, what string, to descent, spoil func(protoreflect.Message)) {
	w.found = append(w.found, Mutation{
		Path: path, What: what, names: names,
		Apply: func(m proto.Message) { spoil(to(m.ProtoReflect())) },
	})
}

// message spoils every field of have, the message that to leads to, those that are
// not set included.
func (w *walk) message(path string, names []string, have protoreflect.Message, to descent) {
	w.add(path, below(names, have.Descriptor()), "with fields that nobody knows", to, func(m protoreflect.Message) {
		m.SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, unknownField, protowire.BytesType), make([]byte, unknownSize)))
	})
	fields := have.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		w.field(strings.TrimPrefix(path+"."+string(f.Name()), "."), append(names[:len(names):len(names)], namesOf(f)...), f, have, to)
	}
}

func (w *walk) field(path string, names []string, f protoreflect.FieldDescriptor, have protoreflect.Message, to descent) {
	all := names
	if f.Message() != nil && !f.IsMap() {
		all = below(names, f.Message())
	}
	if have.Has(f) {
		w.add(path, all, "cleared", to, func(m protoreflect.Message) { m.Clear(f) })
	}
	switch {
	case f.IsMap():
		w.entries(path, names, f, to)
	case f.IsList():
		w.list(path, all, names, f, have, to)
	case f.Message() != nil:
		w.add(path, all, "set to an empty message", to, func(m protoreflect.Message) { m.Set(f, m.NewField(f)) })
		for _, v := range wellKnown(f.Message().FullName()) {
			w.add(path, names, fmt.Sprintf("set to %d s and %d ns", v.seconds, v.nanos), to, func(m protoreflect.Message) { v.set(m.Mutable(f).Message()) })
		}
		if have.Has(f) && wellKnown(f.Message().FullName()) == nil {
			w.message(path, names, have.Get(f).Message(), func(root protoreflect.Message) protoreflect.Message { return to(root).Mutable(f).Message() })
		}
	default:
		for _, v := range extremes(f) {
			w.add(path, names, "set to "+show(v), to, func(m protoreflect.Message) { m.Set(f, v) })
		}
	}
}

// list spoils a list as a whole, and each of its elements.
func (w *walk) list(path string, all, names []string, f protoreflect.FieldDescriptor, have protoreflect.Message, to descent) {
	list := have.Get(f).List()
	w.add(path, all, "with an empty element more", to, func(m protoreflect.Message) {
		l := m.Mutable(f).List()
		l.Append(l.NewElement())
	})
	w.add(path, all, fmt.Sprintf("with %d elements more", manyElements), to, func(m protoreflect.Message) {
		l := m.Mutable(f).List()
		fill := l.NewElement()
		if l.Len() > 0 {
			fill = l.Get(0)
		}
		for range manyElements {
			l.Append(fill)
		}
	})
	for i := range list.Len() {
		at := fmt.Sprintf("%s[%d]", path, i)
		w.add(at, all, "left out", to, func(m protoreflect.Message) {
			l := m.Mutable(f).List()
			for j := i; j+1 < l.Len(); j++ {
				l.Set(j, l.Get(j+1))
			}
			l.Truncate(l.Len() - 1)
		})
		if f.Message() != nil {
			w.message(at, names, list.Get(i).Message(), func(root protoreflect.Message) protoreflect.Message {
				return to(root).Mutable(f).List().Get(i).Message()
			})
			continue
		}
		for _, v := range extremes(f) {
			w.add(at, names, "set to "+show(v), to, func(m protoreflect.Message) { m.Mutable(f).List().Set(i, v) })
		}
	}
}

// entries spoils a map.
func (w *walk) entries(path string, names []string, f protoreflect.FieldDescriptor, to descent) {
	for _, k := range extremes(f.MapKey()) {
		w.add(path, names, "with the key "+show(k), to, func(m protoreflect.Message) {
			entries := m.Mutable(f).Map()
			entries.Set(k.MapKey(), entries.NewValue())
		})
	}
	if f.MapKey().Kind() != protoreflect.StringKind {
		return
	}
	w.add(path, names, fmt.Sprintf("with %d entries more", manyElements), to, func(m protoreflect.Message) {
		entries := m.Mutable(f).Map()
		for i := range manyElements {
			entries.Set(protoreflect.ValueOfString(fmt.Sprint("entry-", i)).MapKey(), entries.NewValue())
		}
	})
	if f.MapValue().Message() != nil {
		return
	}
	for _, v := range extremes(f.MapValue()) {
		w.add(path, names, "with the value "+show(v), to, func(m protoreflect.Message) {
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("entry").MapKey(), v)
		})
	}
}

// namesOf returns the names that a text may use for a field: its own, without the
// words that repeat its message, and that of one element of a list.
func namesOf(f protoreflect.FieldDescriptor) []string {
	name := string(f.Name())
	owner := strings.ToLower(string(f.ContainingMessage().Name()))
	names := []string{strings.TrimPrefix(name, owner+"_")}
	if f.IsList() {
		names = append(names, strings.TrimSuffix(name, "s"))
	}
	return names
}

// below returns names and those of all fields of d, to a depth of three.
func below(names []string, d protoreflect.MessageDescriptor) []string {
	return appendBelow(names[:len(names):len(names)], d, 3)
}

func appendBelow(names []string, d protoreflect.MessageDescriptor, depth int) []string {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		names = append(names, namesOf(f)...)
		if f.Message() != nil && depth > 1 {
			names = appendBelow(names, f.Message(), depth-1)
		}
	}
	return names
}
